package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/llmd/eppsim"
	"weir/tenants"
)

// picker is an Endpoint Picker that listens.
type picker struct {
	*eppsim.Server

	address string
	grpc    *grpc.Server
	health  *health.Server
}

func startPicker(t *testing.T, c eppsim.Config, options ...grpc.ServerOption) *picker {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{Server: eppsim.New(c), address: l.Addr().String(), grpc: grpc.NewServer(options...), health: health.NewServer()}
	extprocv3.RegisterExternalProcessorServer(p.grpc, p.Server)
	healthpb.RegisterHealthServer(p.grpc, p.health)
	var serving sync.WaitGroup
	serving.Go(func() { _ = p.grpc.Serve(l) })
	t.Cleanup(func() {
		p.grpc.Stop()
		serving.Wait()
	})
	return p
}

// modelServer is one that keeps what it was sent. Its answer has so many
// events, and waits for go before the last of them.
type modelServer struct {
	*httptest.Server

	mu     sync.Mutex
	bodies []map[string]any
	half   chan struct{} // closed when half of a stream is out; nil: no stream waits
	rest   chan struct{}
}

func startEngine(t *testing.T) *modelServer {
	t.Helper()
	e := &modelServer{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		raw, _ := io.ReadAll(r.Body)
		var body map[string]any
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Errorf("the engine was sent %s: %v", raw, err)
		}
		e.mu.Lock()
		e.bodies = append(e.bodies, body)
		e.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"id":"c","model":"sim","choices":[{"index":0,"delta":{"content":"one"}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		if e.half != nil {
			close(e.half)
			<-e.rest
		}
		fmt.Fprint(w, `data: {"id":"c","model":"sim","choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"stop"}]}`+"\n\n"+
			`data: {"id":"c","model":"sim","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *modelServer) host() string { return strings.TrimPrefix(e.URL, "http://") }

func (e *modelServer) sent() []map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bodies
}

// remote is a gateway whose pool main is scheduled elsewhere.
type remote struct {
	*gateway.Gateway

	fleet  *gateway.Fleet
	shelf  *shelf
	ledger *ledger
	house  *house
}

// buildRemote takes the catalogue's pools.
func buildRemote(t *testing.T, pools string) *remote {
	t.Helper()
	r := &remote{shelf: newShelf(t, pools), ledger: &ledger{}, house: build(t, nil)}
	r.fleet = gateway.NewFleet(slog.New(slog.DiscardHandler), r.shelf, nil)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.fleet.Run(ctx) }()
	t.Cleanup(func() {
		r.fleet.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.Gateway = gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: r.shelf, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: r.fleet, Receipts: r.ledger,
	}, gateway.Config{SaltSecret: []byte("salt"), Secrets: func(string) string { return "secret" }})
	t.Cleanup(r.Close)
	return r
}

// ask runs a streamed chat.
func (r *remote) ask(t *testing.T, id, without string) (string, error) {
	t.Helper()
	to := &caller{}
	err := r.Run(t.Context(), r.house.call(func(c *gateway.Call) {
		plan := *c.Principal.Plan
		plan.WhenNoScheduler, plan.Limits.Concurrency = without, 0
		who := *c.Principal
		who.Plan = &plan
		c.ID, c.Principal, c.Stream = id, &who, true
		c.Fields = []byte(`"messages":[{"role":"user","content":"hello"}],"max_tokens":12`)
	}), to)
	return to.text(), err
}

func cause(err error) gateway.Cause {
	if e, ok := errors.AsType[*gateway.Error](err); ok {
		return e.Cause
	}
	return ""
}

func llmdPool(endpoints, more string, pickers ...*picker) string {
	var list []string
	for _, p := range pickers {
		list = append(list, `"grpc://`+p.address+`"`)
	}
	return `{name: main, endpoints: [` + endpoints + `], scheduler: {kind: llm-d, epp: [` + strings.Join(list, ", ") + `]` + more + `}}`
}

func listed(e *modelServer) string { return `{id: a, url: "` + e.URL + `"}` }

func TestARequestGoesWhereTheSharedSchedulerSays(t *testing.T) {
	t.Parallel()
	p, e := startPicker(t, eppsim.Config{}), startEngine(t)
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 1}})
	r := buildRemote(t, llmdPool(listed(e), "", p))
	text, err := r.ask(t, "req_1", "")
	if err != nil || !strings.HasSuffix(text, doneEvent) {
		t.Fatalf("%v, the caller saw %s", err, text)
	}
	until(t, "the picker learns of the end", func() bool { all := p.Exchanges(); return len(all) == 1 && all[0].Complete })
	x := p.Exchanges()[0]
	if x.Headers["x-llm-d-inference-objective"] != "standard" || x.Headers["x-llm-d-inference-fairness-id"] != "f_a" {
		t.Errorf("the picker was told %v", x.Headers)
	}
	for name, value := range x.Headers {
		if name == "authorization" || strings.Contains(value, "secret") || strings.Contains(value, "ten_a") {
			t.Errorf("the picker was told %s: %s", name, value)
		}
	}
	all := r.fleet.DecisionsOn("req_1")
	if len(all) != 1 || all[0].Endpoint != "a" || all[0].Shared == nil || all[0].Shared.Scheduler != p.address || all[0].Models[0] != "pub" {
		t.Errorf("the decision is told as %+v", all)
	}
	if got := r.ledger.all(); len(got) != 1 || got[0].Usage.Output != 2 {
		t.Errorf("receipts %+v", got)
	}
	shared, own := r.fleet.Undivided()
	if len(shared) != 1 || own != 0 {
		t.Errorf("shared are %v, and %d others", shared, own)
	}
	if err := r.fleet.CheckShared(t.Context()); err != nil {
		t.Error(err)
	}
	if p.Live() != 0 {
		t.Errorf("%d places are still taken", p.Live())
	}
}

func TestALyingSchedulerChangesNothingThatIsOurs(t *testing.T) {
	t.Parallel()
	e := startEngine(t)
	p := startPicker(t, eppsim.Config{Mutate: func(body []byte) []byte {
		var m map[string]any
		if err := json.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		m["model"], m["cache_salt"], m["stream_options"], m["priority"] = "another", "of-somebody-else", map[string]any{}, 3
		delete(m, "max_tokens")
		out, _ := json.Marshal(m)
		return append(out[:len(out)-1], `,"cache\u005fsalt":"once-more"}`...)
	}})
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	r := buildRemote(t, llmdPool(listed(e), "", p))
	if _, err := r.ask(t, "req_1", ""); err != nil {
		t.Fatal(err)
	}
	got, theirs := e.sent()[0], p.Exchanges()[0]
	var asked map[string]any
	if err := json.Unmarshal(theirs.Body, &asked); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"model", "cache_salt", "stream", "max_tokens"} {
		if got[name] == nil || got[name] != asked[name] {
			t.Errorf("%s is %v, want our own %v", name, got[name], asked[name])
		}
	}
	if o, _ := got["stream_options"].(map[string]any); o["include_usage"] != true {
		t.Errorf("stream_options are %v", got["stream_options"])
	}
	if got["priority"] != 3.0 {
		t.Errorf("priority is %v, which is the picker's to set", got["priority"])
	}
}

func TestNothingGoesWhereThePoolIsNot(t *testing.T) {
	t.Parallel()
	p, e, stranger := startPicker(t, eppsim.Config{}), startEngine(t), startEngine(t)
	p.SetEndpoints([]eppsim.Endpoint{{Address: stranger.host(), Max: 4}})
	r := buildRemote(t, llmdPool(listed(e), "", p))
	if _, err := r.ask(t, "req_1", tenants.StandIn); cause(err) != gateway.NoEndpoint {
		t.Errorf("a destination that is not of the pool: %v", err)
	}
	if n := len(stranger.sent()); n > 0 {
		t.Errorf("the stranger was sent %d requests", n)
	}
	r.shelf.put(t, llmdPool("", `, allowed_destinations: ["127.0.0.0/8"]`, p))
	until(t, "the new settings hold", func() bool { _, err := r.ask(t, "req_2", ""); return err == nil })
	if n := len(stranger.sent()); n != 1 {
		t.Errorf("an allowed destination was sent %d requests", n)
	}
	if err := r.fleet.Probe(t.Context(), "main", stranger.host()); err != nil {
		t.Errorf("probe of an allowed destination: %v", err)
	}
	if err := r.fleet.Probe(t.Context(), "main", "10.0.0.1:80"); err == nil {
		t.Error("what is not allowed was probed")
	}
}

func TestTheStandbyTakesOver(t *testing.T) {
	t.Parallel()
	e := startEngine(t)
	primary, second := startPicker(t, eppsim.Config{}), startPicker(t, eppsim.Config{})
	second.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	r := buildRemote(t, llmdPool(listed(e), "", primary, second))
	answered := make(chan error, 1)
	go func() { // the primary has no endpoint: it waits there
		_, err := r.ask(t, "req_1", "")
		answered <- err
	}()
	until(t, "it waits at the primary", func() bool { return primary.Queued() == 1 })
	primary.grpc.Stop()
	if err := <-answered; err != nil {
		t.Errorf("a request whose scheduler died: %v", err)
	}
	if n := len(second.Exchanges()); n != 1 {
		t.Errorf("the standby saw %d requests", n)
	}
	err := r.fleet.CheckShared(t.Context())
	if err == nil || !strings.Contains(err.Error(), primary.address+" is down") || !strings.Contains(err.Error(), "in use is "+second.address) {
		t.Errorf("readiness says %v", err)
	}
}

// Of schedulers that elect one among them the others say that they don't serve.
func TestAStandbyThatWaitsIsAsItShouldBe(t *testing.T) {
	t.Parallel()
	e := startEngine(t)
	waits, serves := startPicker(t, eppsim.Config{}), startPicker(t, eppsim.Config{})
	waits.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	for _, p := range []*picker{waits, serves} {
		p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	}
	r := buildRemote(t, llmdPool(listed(e), "", waits, serves))
	until(t, "both are known", func() bool { s := r.fleet.Shared()["main"].Standby.EPPs; return s[0].Waits && s[1].InUse })
	if err := r.fleet.CheckShared(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.ask(t, "req_1", ""); err != nil || len(serves.Exchanges()) != 1 {
		t.Errorf("%v, and the one that serves saw %d requests", err, len(serves.Exchanges()))
	}
	serves.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	until(t, "nobody serves", func() bool { return r.fleet.CheckShared(t.Context()) != nil })
}

func TestWhatBecomesOfRequestsWithoutAScheduler(t *testing.T) {
	t.Parallel()
	e, gone := startEngine(t), startPicker(t, eppsim.Config{})
	gone.grpc.Stop()
	known := buildRemote(t, llmdPool(listed(e), "", gone))
	until(t, "the scheduler is found to be away", func() bool { return known.fleet.CheckShared(t.Context()) != nil })
	_, err := known.ask(t, "req_1", "")
	if failure, _ := errors.AsType[*gateway.Error](err); cause(err) != gateway.NoEndpoint || failure.RetryAfter < time.Second {
		t.Errorf("a plan that doesn't say: %v", err)
	}
	if text, err := known.ask(t, "req_2", tenants.StandIn); err != nil || !strings.HasSuffix(text, doneEvent) {
		t.Errorf("a plan that wants a stand-in: %v, %s", err, text)
	}
	s := known.fleet.Shared()["main"]
	if s.Refused != 1 || s.StoodIn != 1 {
		t.Errorf("counted %+v", s)
	}
	if all := known.fleet.DecisionsOn("req_1"); len(all) != 1 || all[0].Refused != scheduler.NoEndpoints || !strings.Contains(all[0].Shared.Reason, "no scheduler of the pool answers") {
		t.Errorf("the refusal is told as %+v", all)
	}
	unknown := buildRemote(t, llmdPool("", `, allowed_destinations: ["127.0.0.0/8"]`, gone))
	until(t, "it is found to be away here too", func() bool { return unknown.fleet.CheckShared(t.Context()) != nil })
	if _, err := unknown.ask(t, "req_3", tenants.StandIn); cause(err) != gateway.NoEndpoint {
		t.Errorf("a pool that lists nothing: %v", err)
	}
}

func TestASchedulerThatDiesHurtsNoRunningStream(t *testing.T) {
	t.Parallel()
	p, e := startPicker(t, eppsim.Config{}), startEngine(t)
	e.half, e.rest = make(chan struct{}), make(chan struct{})
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	r := buildRemote(t, llmdPool(listed(e), "", p))
	go func() {
		<-e.half
		p.grpc.Stop()
		close(e.rest)
	}()
	text, err := r.ask(t, "req_1", "")
	if err != nil || !strings.HasSuffix(text, doneEvent) || !strings.Contains(text, "two") {
		t.Errorf("%v, the caller saw %s", err, text)
	}
}

func TestWhatWaitsSurvivesNewSettings(t *testing.T) {
	t.Parallel()
	p, e := startPicker(t, eppsim.Config{}), startEngine(t)
	r := buildRemote(t, llmdPool(listed(e), "", p))
	answered := make(chan error, 1)
	go func() {
		_, err := r.ask(t, "req_1", "")
		answered <- err
	}()
	until(t, "it waits", func() bool { return p.Queued() == 1 })
	before, _ := r.fleet.Scheduler("main")
	r.shelf.put(t, llmdPool(listed(e), ", objectives: {standard: other}", p))
	until(t, "the pool has another queue", func() bool { now, _ := r.fleet.Scheduler("main"); return now != before })
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	if err := <-answered; err != nil {
		t.Errorf("what waited ended with %v", err)
	}
	if lease, err := before.Schedule(t.Context(), scheduler.Request{ID: "late.1", Body: []byte(`{}`)}); err != nil {
		t.Errorf("who came with the old queue in hand: %v", err)
	} else {
		lease.End(scheduler.Outcome{})
	}
}

func TestPlaintextToOtherMachinesIsForDevelopment(t *testing.T) {
	t.Parallel()
	r := buildRemote(t, `{name: main, endpoints: [{id: a, url: "http://127.0.0.1:1"}], scheduler: {kind: llm-d, insecure_plaintext: true, epp: ["grpc://epp.invalid:9002"]}}`)
	if err := r.fleet.CheckShared(t.Context()); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("readiness says %v", err)
	}
	r.fleet.AllowPlaintext()
	if err := r.fleet.CheckShared(t.Context()); err != nil && strings.Contains(err.Error(), "without TLS") {
		t.Error(err)
	}
}

// secure makes a server's credentials, with the files that a client needs of
// them: what signs its certificate, and a certificate to show.
func secure(t *testing.T) (server credentials.TransportCredentials, dir string, shown *atomic.Int32) {
	t.Helper()
	made := httptest.NewTLSServer(http.NotFoundHandler()) // whose certificate is for example.com
	made.Close()
	pair := made.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir, shown = t.TempDir(), &atomic.Int32{}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert,
		VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { shown.Add(1); return nil },
	}), dir, shown
}

func TestASchedulerIsTrustedByItsCertificateAlone(t *testing.T) {
	t.Parallel()
	creds, dir, shown := secure(t)
	e := startEngine(t)
	p := startPicker(t, eppsim.Config{}, grpc.Creds(creds))
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	ca, ours := dir+"/cert.pem", "cert_file: "+dir+"/cert.pem, key_file: "+dir+"/key.pem"
	for name, test := range map[string]struct {
		tls    string
		works  bool
		reason string // in what readiness says
	}{
		"its CA, its name, and a certificate to show": {"ca_file: " + ca + ", server_name: example.com, " + ours, true, ""},
		"another name":              {"ca_file: " + ca + ", server_name: epp.invalid, " + ours, false, "not epp.invalid"},
		"nobody vouches for it":     {"server_name: example.com, " + ours, false, "unknown authority"},
		"no certificate to show":    {"ca_file: " + ca + ", server_name: example.com", false, "is down"},
		"a CA that can't be read":   {"ca_file: " + dir + "/none.pem", false, "no such file"},
		"a certificate that is not": {"cert_file: " + dir + "/key.pem, key_file: " + dir + "/key.pem", false, "our certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := `{name: main, endpoints: [` + listed(e) + `], scheduler: {kind: llm-d, epp: ["grpcs://` + p.address + `"], tls: {` + test.tls + `}}}`
			r := buildRemote(t, pool)
			if test.works {
				if _, err := r.ask(t, "req_1", ""); err != nil || shown.Load() == 0 {
					t.Errorf("%v; %d certificates were shown", err, shown.Load())
				}
				return
			}
			until(t, "readiness says "+test.reason, func() bool {
				err := r.fleet.CheckShared(t.Context())
				return err != nil && strings.Contains(err.Error(), test.reason)
			})
			if _, err := r.ask(t, "req_1", ""); cause(err) != gateway.NoEndpoint {
				t.Errorf("a request: %v", err)
			}
			if text, err := r.ask(t, "req_2", tenants.StandIn); err != nil || !strings.HasSuffix(text, doneEvent) {
				t.Errorf("a plan with a stand-in: %v", err)
			}
		})
	}
}

func TestMissingObjectivesAreTold(t *testing.T) {
	t.Parallel()
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="100"} 0`)
	}))
	t.Cleanup(metrics.Close)
	p := startPicker(t, eppsim.Config{})
	catalogueOf := func(more string) *catalogue.Snapshot {
		doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
bands: [{name: gold, priority: 100}, {name: standard, priority: 0}, {name: batch, priority: -10}]
pools: [` + llmdPool("", `, allowed_destinations: ["127.0.0.0/8"]`+more, p) + `]
`))
		if err == nil {
			err = doc.Validate()
		}
		if err != nil {
			t.Fatal(err)
		}
		return doc.Snapshot(nil)
	}
	told := catalogueOf(`, metrics_url: "` + metrics.URL + `", objectives: {batch: low}`)
	r := buildRemote(t, llmdPool("", `, allowed_destinations: ["127.0.0.0/8"], metrics_url: "`+metrics.URL+`"`, p))
	r.shelf.set(told)
	until(t, "readiness knows what is missing", func() bool { return r.fleet.CheckObjectives(t.Context()) != nil })
	if err := r.fleet.CheckObjectives(t.Context()); !strings.Contains(err.Error(), "pool main: the scheduler keeps no queue for the priority -10: create the InferenceObjective low") {
		t.Error(err)
	}
	if err := r.fleet.CheckObjectivesKnown(t.Context()); err != nil {
		t.Error(err)
	}
	r.shelf.set(catalogueOf(""))
	until(t, "readiness says that nobody tells", func() bool { return r.fleet.CheckObjectivesKnown(t.Context()) != nil })
	if err := r.fleet.CheckObjectives(t.Context()); err != nil {
		t.Errorf("what isn't known is missing: %v", err)
	}
	pool, _ := told.Pool("main")
	found, err := gateway.LookAtShared(t.Context(), told, pool)
	if err != nil || len(found.ObjectivesMissing) != 1 || len(found.Schedulers) != 1 || !found.Schedulers[0].Up {
		t.Errorf("%+v, %v", found, err)
	}
	p.grpc.Stop()
	if found, _ = gateway.LookAtShared(t.Context(), told, pool); found.Schedulers[0].Up || found.Schedulers[0].Fault == "" {
		t.Errorf("one that is away: %+v", found)
	}
}

func TestSharedSchedulersShowInMetrics(t *testing.T) {
	t.Parallel()
	p, e := startPicker(t, eppsim.Config{}), startEngine(t)
	p.SetEndpoints([]eppsim.Endpoint{{Address: e.host(), Max: 4}})
	s, reg := newShelf(t, llmdPool("", `, allowed_destinations: ["127.0.0.0/8"]`, p)), prometheus.NewRegistry()
	fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), s, reg)
	t.Cleanup(fleet.Close)
	queue, _ := fleet.Scheduler("main")
	lease, err := queue.Schedule(t.Context(), scheduler.Request{ID: "x.1", Body: []byte(`{"model":"sim"}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.End(scheduler.Outcome{})
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, f := range all {
		for _, m := range f.GetMetric() {
			text := f.GetName()
			for _, l := range m.GetLabel() {
				text += " " + l.GetValue()
			}
			shown = append(shown, fmt.Sprint(text, " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	for _, want := range []string{
		"weir_shared_scheduler_up main " + p.address + " 1", "weir_shared_scheduler_in_use main " + p.address + " 1",
		"weir_shared_scheduler_requests main running 1", "weir_shared_scheduler_events_total granted main 1",
	} {
		if !slices.Contains(shown, want) {
			t.Errorf("%q is not in %q", want, shown)
		}
	}
	if text := strings.Join(shown, "\n"); strings.Contains(text, "pool_saturation") {
		t.Error("a pool that another process schedules shows a saturation of its own")
	}
}
