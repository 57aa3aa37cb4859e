package keda_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/scheduler/pool"
	"weir/scheduler/pool/keda"
	"weir/scheduler/pool/keda/externalscaler"
)

// start runs a function until the test ends.
func start(t *testing.T, run func(ctx context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// dial serves scales to a client as KEDA is one.
func dial(t *testing.T, scales func(string) ([]pool.Scale, bool)) externalscaler.ExternalScalerClient {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, func(ctx context.Context) error { return keda.New(scales).Serve(ctx, l) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return externalscaler.NewExternalScalerClient(conn)
}

func trigger(name, role string) *externalscaler.ScaledObjectRef {
	return &externalscaler.ScaledObjectRef{Name: "engines", ScalerMetadata: map[string]string{"pool": name, "role": role}}
}

func TestTriggersGetTheirPoolAndRole(t *testing.T) {
	t.Parallel()
	client := dial(t, func(name string) ([]pool.Scale, bool) {
		switch name {
		case "gpu":
			return []pool.Scale{{Role: "decode", Desired: 3}, {Role: "prefill"}}, true
		case "unscaled":
			return nil, true
		default:
			return nil, false
		}
	})
	tests := []struct {
		name, pool, role string
		desired          float64
		code             codes.Code
	}{
		{"a role that has work", "gpu", "decode", 3, codes.OK},
		{"a role that is idle", "gpu", "prefill", 0, codes.OK},
		{"a role that isn't there", "gpu", "", 0, codes.NotFound},
		{"a pool that isn't there", "tpu", "", 0, codes.NotFound},
		{"a pool that nobody scales", "unscaled", "", 0, codes.Unavailable},
		{"no pool", "", "", 0, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ref := trigger(tt.pool, tt.role)
			active, err := client.IsActive(t.Context(), ref)
			if status.Code(err) != tt.code || active.GetResult() != (tt.desired > 0) {
				t.Errorf("active %v, %v", active, err)
			}
			spec, err := client.GetMetricSpec(t.Context(), ref)
			if status.Code(err) != tt.code {
				t.Errorf("spec: %v", err)
			}
			values, err := client.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: keda.MetricName})
			if status.Code(err) != tt.code {
				t.Errorf("metrics: %v", err)
			}
			if tt.code != codes.OK {
				return
			}
			if s := spec.GetMetricSpecs(); len(s) != 1 || s[0].GetMetricName() != keda.MetricName || s[0].GetTargetSize() != 1 || s[0].GetTargetSizeFloat() != 1 {
				t.Errorf("spec %v", spec)
			}
			if v := values.GetMetricValues(); len(v) != 1 || v[0].GetMetricValueFloat() != tt.desired || v[0].GetMetricValue() != int64(tt.desired) {
				t.Errorf("metrics %v, want %v", values, tt.desired)
			}
		})
	}
}

// operator does what KEDA and a cluster do: it follows the scaler, starts a
// model server when there should be one, and when there should be none takes it
// out of the file of endpoints, waits until the pool has let go of it, and stops
// it.
type operator struct {
	t      *testing.T
	file   string
	left   func() int // endpoints of the pool, those included that only finish what runs
	server *httptest.Server
	engine *enginesim.Engine
	starts atomic.Int32
	stops  atomic.Int32
}

func (o *operator) follow(stream grpc.ServerStreamingClient[externalscaler.IsActiveResponse]) error {
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled || status.Code(err) == codes.Unavailable:
			o.stop()
			return nil
		case err != nil:
			return err
		case r.GetResult():
			o.up()
		default:
			o.down()
		}
	}
}

func (o *operator) up() {
	if o.server != nil {
		return
	}
	o.engine = enginesim.New(enginesim.Config{Models: []string{"sim"}, ITL: time.Millisecond})
	o.server = httptest.NewServer(o.engine)
	host, port, _ := strings.Cut(strings.TrimPrefix(o.server.URL, "http://"), ":")
	o.publish(fmt.Sprintf(`endpoints: [{name: sim, address: %s, port: %q, labels: {llm-d.ai/engine-type: vllm}}]`, host, port))
	o.starts.Add(1)
}

func (o *operator) down() {
	if o.server == nil {
		return
	}
	o.publish("endpoints: []")
	for deadline := time.Now().Add(5 * time.Second); o.left() > 0 && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	o.stop()
	o.stops.Add(1)
}

func (o *operator) stop() {
	if o.server != nil {
		o.engine.Close()
		o.server.Close()
		o.server = nil
	}
}

func (o *operator) publish(text string) {
	if err := os.WriteFile(o.file+".new", []byte(text), 0o600); err != nil {
		o.t.Error(err)
	}
	if err := os.Rename(o.file+".new", o.file); err != nil {
		o.t.Error(err)
	}
}

// exchange waits for an endpoint as the gateway does, and asks it.
func exchange(ctx context.Context, s *scheduler.Embedded, id string) error {
	l, err := s.Schedule(ctx, scheduler.Request{ID: id, InputTokens: 100})
	if err != nil {
		return err
	}
	result := scheduler.EndpointFault
	defer func() { l.End(scheduler.Outcome{Result: result}) }()
	const body = `{"model":"sim","messages":[{"role":"user","content":"hello"}],"max_tokens":20}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.Targets()[0].URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", res.Status)
	}
	result = scheduler.Completed
	return nil
}

// The whole cycle with real parts: twice from no endpoint to one and back, and
// every request that waited was served.
func TestPoolScalesFromNoneToOneAndBackAndLosesNothing(t *testing.T) {
	t.Parallel()
	s := scheduler.New(scheduler.Config{NoEndpointTTL: time.Minute}, nil)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	p := pool.New(slog.New(slog.DiscardHandler), pool.Config{Interval: 50 * time.Millisecond}, s)
	p.Set(pool.Settings{Scaling: pool.Scaling{Max: 1, DownAfter: 2 * time.Second}})
	p.SetDiscovery(pool.File{Path: file, Every: 10 * time.Millisecond}, func(f pool.Found) pool.Endpoint {
		return pool.Endpoint{ID: f.ID, URL: f.URL, Labels: f.Labels}
	})
	start(t, p.Run)

	o := &operator{t: t, file: file, left: func() int { return len(s.State().Endpoints) }}
	o.publish("endpoints: []")
	until(t, "the pool decides on its size", func() bool { return len(p.Scales()) == 1 })
	client := dial(t, func(string) ([]pool.Scale, bool) { return p.Scales(), true })
	start(t, func(ctx context.Context) error {
		stream, err := client.StreamIsActive(ctx, trigger("main", ""))
		if err != nil {
			return err
		}
		return o.follow(stream)
	})

	for round := range 2 {
		var requests sync.WaitGroup
		for i := range 50 {
			requests.Go(func() {
				if err := exchange(t.Context(), s, fmt.Sprintf("%d.%d", round, i)); err != nil {
					t.Errorf("round %d: a request was lost: %v", round, err)
				}
			})
		}
		requests.Wait()
		if n := o.starts.Load(); n != int32(round)+1 {
			t.Errorf("round %d: %d servers were started", round, n)
		}
		// More comes while the pool is about to be told that it is idle.
		for range 20 {
			<-time.After(20 * time.Millisecond)
			if err := exchange(t.Context(), s, "late"); err != nil {
				t.Errorf("round %d: a late request was lost: %v", round, err)
			}
		}
		until(t, "the idle pool is empty again", func() bool { return o.stops.Load() == int32(round)+1 })
	}
	if st := s.State(); st.Live != 0 || st.Queued != 0 {
		t.Errorf("%d leases and %d waiters are left", st.Live, st.Queued)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.After(30 * time.Second); !ok(); {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}
