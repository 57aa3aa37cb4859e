package epp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/extproc"
)

// onePool is a fleet of one pool.
type onePool struct {
	of        scheduler.Scheduler
	endpoints []scheduler.Endpoint
}

func (p onePool) Pools() []string                                   { return []string{"main"} }
func (p onePool) Endpoints(string) []scheduler.Endpoint             { return p.endpoints }
func (p onePool) Scheduler(name string) (scheduler.Scheduler, bool) { return p.of, name == "main" }
func (p onePool) Band(name string) (int, bool) {
	n, ok := map[string]int{"gold": 100, "batch": -10}[name]
	return n, ok
}

// served is a server on loopback, and its parts.
type served struct {
	*epp.Server

	pool    *scheduler.Embedded
	conn    *grpc.ClientConn
	primary atomic.Bool
	stop    context.CancelFunc
	done    chan struct{} // closed when Serve has returned
}

// serve serves a pool with so many places until the test ends.
func serve(t *testing.T, places int, sc scheduler.Config, cfg epp.Config) *served {
	t.Helper()
	s := &served{pool: scheduler.New(sc, nil), done: make(chan struct{})}
	t.Cleanup(s.pool.Close)
	endpoints := []scheduler.Endpoint{{ID: "e", URL: "http://10.0.0.1:8000", MaxConcurrency: places}}
	s.pool.SetEndpoints(endpoints)
	s.pool.SetHealth("e", scheduler.Healthy)
	s.with(t, onePool{s.pool, endpoints}, cfg)
	return s
}

// with serves any fleet.
func (s *served) with(t *testing.T, fleet epp.Fleet, cfg epp.Config) {
	t.Helper()
	s.primary.Store(true)
	if cfg.Primary == nil {
		cfg.Primary = s.primary.Load
	}
	s.Server = epp.New(slog.New(slog.DiscardHandler), fleet, epp.NewMetrics(nil), cfg)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	go func() {
		defer close(s.done)
		if err := s.Serve(ctx, l, epp.Serving{Grace: 2 * time.Second}); err != nil {
			t.Error(err)
		}
	}()
	if s.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = s.conn.Close()
		<-s.done
		if n := s.Live(); n != 0 {
			t.Errorf("%d exchanges are left", n)
		}
		if s.pool != nil && (s.pool.State().Live != 0 || s.pool.State().Queued != 0) {
			t.Errorf("%d leases and %d requests are left", s.pool.State().Live, s.pool.State().Queued)
		}
	})
}

// proxy is a stream as a proxy has it.
type proxy struct {
	t      *testing.T
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

// open begins a stream with the metadata.
func (s *served) open(t *testing.T, md ...string) *proxy {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), md...))
	t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(s.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &proxy{t, stream, cancel}
}

func (p *proxy) send(m *extprocv3.ProcessingRequest) {
	p.t.Helper()
	if err := p.stream.Send(m); err != nil && !errors.Is(err, io.EOF) { // what ended the stream is read
		p.t.Fatal(err)
	}
}

// hint is the metadata of a subset; nil without one.
func hint(endpoints ...any) *corev3.Metadata {
	list, _ := structpb.NewList(endpoints)
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": {
		Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": structpb.NewListValue(list)},
	}}}
}

func headers(pairs ...string) *corev3.HeaderMap {
	var h extproc.Headers
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h.Map()
}

// request sends a whole request, in pieces of a size.
func (p *proxy) request(body string, size int, pairs ...string) {
	p.t.Helper()
	p.begin(nil, pairs...)
	for piece, last := range extproc.Chunks([]byte(body), size) {
		p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: piece, EndOfStream: last},
		}})
	}
}

func (p *proxy) begin(md *corev3.Metadata, pairs ...string) {
	p.t.Helper()
	all := append([]string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}, pairs...)
	p.send(&extprocv3.ProcessingRequest{
		MetadataContext: md,
		Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers(all...)}},
	})
}

// chat sends a small request under an id.
func (p *proxy) chat(id string, pairs ...string) {
	p.t.Helper()
	p.request(`{"model":"m","messages":[]}`, extproc.MaxChunk, append([]string{"x-request-id", id}, pairs...)...)
}

func (p *proxy) recv() *extprocv3.ProcessingResponse {
	p.t.Helper()
	m, err := p.stream.Recv()
	if err != nil {
		p.t.Fatalf("the server said %v", err)
	}
	return m
}

// routed reads where the request goes, and the body to send there.
func (p *proxy) routed() (destination, body string) {
	p.t.Helper()
	m := p.recv()
	h := m.GetRequestHeaders().GetResponse()
	if h == nil {
		p.t.Fatalf("got %v, want a destination", m)
	}
	destination = extproc.GetSet(h.GetHeaderMutation(), extproc.Destination)
	named := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[extproc.Destination].GetStringValue()
	if named != destination || !h.GetClearRouteCache() {
		p.t.Errorf("header %q, metadata %q, clears the route: %v", destination, named, h.GetClearRouteCache())
	}
	var whole bytes.Buffer
	for {
		piece := p.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(piece.GetBody()) > extproc.MaxPiece {
			p.t.Errorf("a piece of %d bytes", len(piece.GetBody()))
		}
		whole.Write(piece.GetBody())
		if piece.GetEndOfStream() {
			return destination, whole.String()
		}
	}
}

// told reads a gateway's answer: the body goes as it is.
func (p *proxy) told() {
	p.t.Helper()
	if h := p.recv().GetRequestHeaders().GetResponse().GetHeaderMutation(); extproc.GetSet(h, extproc.Destination) == "" {
		p.t.Errorf("headers %v name no destination", h)
	}
	if b := p.recv().GetRequestBody(); b == nil || b.GetResponse().GetBodyMutation() != nil {
		p.t.Errorf("the body is %v, want it unchanged", b)
	}
}

// refusedAs reads a refusal.
type refusedAs struct {
	status                       int
	kind, dropped, reason, after string
}

func (p *proxy) refused() refusedAs {
	p.t.Helper()
	m := p.recv().GetImmediateResponse()
	if m == nil {
		p.t.Fatal("the request was not refused")
	}
	var body struct {
		Error struct {
			Type string `json:"type"`
			Code int    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.GetBody(), &body); err != nil || body.Error.Code != int(m.GetStatus().GetCode()) {
		p.t.Errorf("body %s with status %d: %v", m.GetBody(), m.GetStatus().GetCode(), err)
	}
	get := func(name string) string { return extproc.GetSet(m.GetHeaders(), name) }
	return refusedAs{int(m.GetStatus().GetCode()), body.Error.Type, get(extproc.DroppedReason), get(extproc.ReasonHeader), get(extproc.RetryAfter)}
}

func (p *proxy) responseHeaders(pairs ...string) {
	p.t.Helper()
	p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers(pairs...)},
	}})
}

func (p *proxy) responseBody(piece string, last bool) {
	p.t.Helper()
	p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: last},
	}})
}

// end closes the stream and reads what is left of it.
func (p *proxy) end() error {
	_ = p.stream.CloseSend()
	for {
		if _, err := p.stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !so(); <-tick.C {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (s *served) rests(t *testing.T, live, queued int) {
	t.Helper()
	eventually(t, "so many run and wait", func() bool {
		st := s.pool.State()
		return st.Live == live && st.Queued == queued
	})
}

// witness is a scheduler that notes what it was asked and what became of it.
type witness struct {
	scheduler.Scheduler

	mu       sync.Mutex
	asked    []scheduler.Request
	progress []scheduler.Progress
	ends     []scheduler.Outcome
	then     func() // after each grant
}

type witnessed struct {
	scheduler.Lease

	w *witness
}

func (w *witness) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r)
	w.mu.Unlock()
	l, err := w.Scheduler.Schedule(ctx, r)
	if err != nil {
		return nil, err
	}
	if w.then != nil {
		w.then()
	}
	return witnessed{l, w}, nil
}

func (l witnessed) Observe(p scheduler.Progress) {
	l.w.mu.Lock()
	l.w.progress = append(l.w.progress, p)
	l.w.mu.Unlock()
	l.Lease.Observe(p)
}

func (l witnessed) End(o scheduler.Outcome) {
	l.w.mu.Lock()
	l.w.ends = append(l.w.ends, o)
	l.w.mu.Unlock()
	l.Lease.End(o)
}

// first is what the first request was, and how its lease ended first.
func (w *witness) first(t *testing.T) (scheduler.Request, scheduler.Outcome) {
	t.Helper()
	eventually(t, "the lease has ended", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ends) > 0
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[0], w.ends[0]
}

// watched serves a pool of one place and notes what it is asked.
func watched(t *testing.T) (*served, *witness) {
	t.Helper()
	s := &served{pool: scheduler.New(scheduler.Config{}, nil), done: make(chan struct{})}
	t.Cleanup(s.pool.Close)
	endpoints := []scheduler.Endpoint{{ID: "e", URL: "http://10.0.0.1:8000", MaxConcurrency: 1}, {ID: "f", URL: "https://model.test", MaxConcurrency: 1}}
	s.pool.SetEndpoints(endpoints)
	w := &witness{Scheduler: s.pool}
	s.with(t, onePool{w, endpoints}, epp.Config{})
	s.pool.SetHealth("e", scheduler.Healthy)
	s.pool.SetHealth("f", scheduler.Healthy)
	return s, w
}

func bodyPiece(piece []byte, last bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: piece, EndOfStream: last},
	}}
}

// bare is a request that has headers alone.
func bare() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: headers(":method", "GET", ":path", "/v1/models"), EndOfStream: true,
	}}}
}

// refuses is a scheduler that does nothing else.
type refuses func() error

// Schedule refuses.
func (f refuses) Schedule(context.Context, scheduler.Request) (scheduler.Lease, error) {
	return nil, f()
}
