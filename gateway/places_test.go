package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/tenants"
)

// town is a gateway over a real fleet whose engines say which of them answered.
type town struct {
	*gateway.Gateway
	fleet  *gateway.Fleet
	snap   *catalogue.Snapshot
	ledger *ledger
	plan   tenants.Plan

	mu     sync.Mutex
	served []string // engines, in order
	bodies []string
}

// newTown has a pool of one simulated engine for each name, and the model
// "pub" with the routes. A pool's further settings may follow its name.
func newTown(t *testing.T, routes string, pools ...string) *town {
	t.Helper()
	o := &town{ledger: &ledger{}, plan: tenants.Plan{Name: "basic", Weight: 1, Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}}}
	var listed []string
	for _, p := range pools {
		name, settings, _ := strings.Cut(p, " ")
		sim := enginesim.New(enginesim.Config{ZeroLatency: true, Models: []string{"pub"}})
		t.Cleanup(sim.Close)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				o.mu.Lock()
				o.served, o.bodies = append(o.served, name), append(o.bodies, string(body))
				o.mu.Unlock()
				r.Body = io.NopCloser(strings.NewReader(string(body)))
			}
			sim.ServeHTTP(w, leak(name, r))
		}))
		t.Cleanup(server.Close)
		engine := "vllm"
		if strings.Contains(name, "sglang") {
			engine = "sglang"
		}
		listed = append(listed, fmt.Sprintf("{name: %s, %s endpoints: [{id: e, url: %q, engine: %s}]}", name, settings, server.URL, engine))
	}
	doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
bands: [{name: standard, priority: 7}]
pools: [` + strings.Join(listed, ", ") + `]
models: [{name: pub, operations: [chat], shutdown_date: 2999-03-01T00:00:00Z, routes: [` + routes + `]}]
`))
	if err == nil {
		err = doc.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	o.snap = doc.Snapshot(nil)
	source := fixed{o.snap}
	o.fleet = gateway.NewFleet(slog.New(slog.DiscardHandler), source, nil)
	t.Cleanup(o.fleet.Close)
	o.Gateway = gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: source, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: o.fleet, Receipts: o.ledger,
	}, gateway.Config{SaltSecret: []byte("salt")})
	t.Cleanup(o.Close)
	return o
}

// leak makes an engine whose name says so ignore the salt, everywhere or in
// responses of its own.
func leak(name string, r *http.Request) *http.Request {
	if !strings.Contains(name, "leaky") || r.Method != http.MethodPost || strings.Contains(name, "natively") && r.URL.Path != "/v1/responses" {
		return r
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(strings.Replace(string(body), `"cache_salt"`, `"metadata"`, 1)))
	return r
}

// prove lets the pools prove that they are verified.
func (o *town) prove(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { _ = o.WatchIsolation(ctx) })
	t.Cleanup(watch.Wait)
	t.Cleanup(cancel)
	<-o.IsolationProbed()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.served, o.bodies = nil, nil
}

// fixed is a catalogue that doesn't change.
type fixed struct{ snap *catalogue.Snapshot }

func (f fixed) Snapshot() *catalogue.Snapshot { return f.snap }
func (f fixed) Changed() <-chan struct{}      { return nil }

// ask runs a call of a session and returns the engine that served it.
func (o *town) ask(ctx context.Context, session string) (string, error) {
	plan := o.plan
	messages := []byte(`[{"role":"user","content":"hello"}]`)
	err := o.Run(ctx, gateway.Call{
		ID: "req_" + session, Operation: gateway.Chat, Model: "pub", Session: session, Choices: 1, ReceivedAt: time.Now(),
		Fields: []byte(`"messages":` + string(messages) + `,"max_tokens":2`), Prompt: [2][]byte{nil, messages},
		Principal: &tenants.Principal{Tenant: "ten_a", Project: "prj_a", Key: "key_a", Plan: &plan, FairnessID: "f_a"},
	}, &caller{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil || len(o.served) == 0 {
		return "", err
	}
	return o.served[len(o.served)-1], nil
}

// Nothing eligible is a refusal, never another place.
func TestAPlanKeepsItsRequestsInPlace(t *testing.T) {
	t.Parallel()
	pools := []string{"plain", "eu region: eu,", "us region: us, isolation: verified,", "own region: eu, isolation: single-tenant, tenants: [ten_a],", "theirs region: eu, isolation: single-tenant, tenants: [ten_b],"}
	const all = "{pool: plain}, {pool: eu}, {pool: us}, {pool: own}, {pool: theirs}"
	for name, test := range map[string]struct {
		routes    string
		regions   []string
		isolation string
		want      []string // none: refused
	}{
		"any place":                      {all, nil, "", []string{"plain", "eu", "us", "own"}},
		"one region":                     {all, []string{"eu"}, "", []string{"eu", "own"}},
		"two regions":                    {all, []string{"us", "eu"}, "", []string{"eu", "us", "own"}},
		"a region that there is not":     {all, []string{"mars"}, "", nil},
		"verified isolation":             {all, nil, "verified", []string{"us", "own"}},
		"single-tenant":                  {all, nil, "single-tenant", []string{"own"}},
		"verified in a region":           {"{pool: eu}, {pool: us}", []string{"eu"}, "verified", nil},
		"another tenant's pool":          {"{pool: theirs}", nil, "", nil},
		"one route, to the wrong region": {"{pool: us}", []string{"eu"}, "", nil},
		"spill-over stays in the region": {"{pool: eu, spill_when: {saturation: 0.0001}}, {pool: us, overflow: true}", []string{"eu"}, "", []string{"eu"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTown(t, test.routes, pools...)
			o.prove(t)
			o.plan.Regions, o.plan.Isolation = test.regions, test.isolation
			seen := map[string]bool{}
			for i := range 60 {
				pool, err := o.ask(t.Context(), fmt.Sprint("s", i))
				var e *gateway.Error
				switch {
				case len(test.want) == 0 && errors.As(err, &e) && e.Cause == gateway.PlaceForbidden:
				case err != nil || len(test.want) == 0:
					t.Fatalf("served by %q, %v", pool, err)
				default:
					seen[pool] = true
				}
			}
			for _, p := range test.want {
				if !seen[p] {
					t.Errorf("nothing went to %s", p)
				}
				delete(seen, p)
			}
			if len(seen) > 0 {
				t.Errorf("calls went to %v", seen)
			}
		})
	}
}

// A single-tenant pool serves whom it names and nobody else, and models are
// offered to those alone whom some pool may serve.
func TestModelsAreOfferedToWhomAPoolServes(t *testing.T) {
	t.Parallel()
	doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
pools:
  - {name: eu, region: eu, endpoints: []}
  - {name: own, isolation: single-tenant, tenants: [ten_a], endpoints: []}
  - {name: nobodys, isolation: single-tenant, endpoints: []}
models:
  - {name: everyones, operations: [chat], routes: [{pool: eu}]}
  - {name: theirs, operations: [chat], routes: [{pool: own}]}
  - {name: none, operations: [chat], routes: [{pool: nobodys}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	snap := doc.Snapshot(nil)
	for _, tt := range []struct {
		name, tenant string
		regions      []string
		want         string
	}{
		{"the tenant of a pool", "ten_a", nil, "everyones theirs"},
		{"another tenant", "ten_b", nil, "everyones"},
		{"a plan of another region", "ten_b", []string{"us"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, m := range snap.Models() {
				if snap.Offers(m, &tenants.Principal{Tenant: tenants.ID(tt.tenant), Plan: &tenants.Plan{Regions: tt.regions}}) {
					got = append(got, m.Name)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("offered %q, want %q", got, tt.want)
			}
		})
	}
}

// Replicas that share a pool without knowing of each other take their part of it.
func TestReplicasDivideAPool(t *testing.T) {
	t.Parallel()
	o := newTown(t, "{pool: main}", "main scheduler: {max_concurrency: 10, max_queued: 9},")
	o.fleet.Divide(3)
	s := o.fleet.Pools()["main"].State
	if got := s.Endpoints[0].MaxConcurrency; got != 3 {
		t.Errorf("an endpoint may run %d of this replica's, want a third of 10", got)
	}
	if s.MaxQueued != 3 {
		t.Errorf("%d may wait, want a third of 9", s.MaxQueued)
	}
}

// The pool's own scheduler says how busy it is: what is more than spill_when
// goes to the next route, and back only when the chain is a new one.
func TestSpillOverByTheSchedulersPressure(t *testing.T) {
	t.Parallel()
	o := newTown(t, "{pool: first, spill_when: {saturation: 0.5}}, {pool: next, overflow: true}",
		"first scheduler: {max_concurrency: 2},", "next")
	expect := func(session, want string) {
		t.Helper()
		if got, err := o.ask(t.Context(), session); got != want || err != nil {
			t.Errorf("%s went to %q, want %q (%v)", session, got, want, err)
		}
	}
	expect("one", "first")
	queue, _ := o.fleet.Scheduler("first")
	held, err := queue.Schedule(t.Context(), scheduler.Request{ID: "x.1"})
	if err != nil {
		t.Fatal(err)
	}
	expect("one", "next")
	expect("two", "next")
	held.End(scheduler.Outcome{})
	expect("one", "next") // its prefix is there by now
	expect("three", "first")
}

// Engines are told a request's priority only where the pool's document asks for
// it, and so that a higher band goes first.
func TestEnginesAreToldThePriority(t *testing.T) {
	t.Parallel()
	const document = "scheduler: {apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, featureGates: [flowControl], requestHandler: {propagatePriority: true}},"
	for name, test := range map[string]struct{ pool, want string }{
		"vLLM, lower first":    {"vllm " + document, "-7"},
		"SGLang, higher first": {"sglang " + document, "7"},
		"no document":          {"vllm", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _, _ := strings.Cut(test.pool, " ")
			o := newTown(t, "{pool: "+pool+"}", test.pool)
			if _, err := o.ask(t.Context(), "s"); (err != nil) != (test.want != "") { // as vLLM refuses one, unless it was started to heed it
				t.Fatal(err)
			}
			if got := gjson.Get(o.bodies[0], "priority").Raw; got != test.want || !gjson.Valid(o.bodies[0]) {
				t.Errorf("priority %q, want %q, in %s", got, test.want, o.bodies[0])
			}
		})
	}
}

func TestAShutdownIsAnnouncedAndThenMeant(t *testing.T) {
	t.Parallel()
	o := newTown(t, "{pool: main}", "main")
	to := &caller{}
	call := gateway.Call{
		ID: "req_1", Operation: gateway.Chat, Model: "pub", Choices: 1, ReceivedAt: time.Now(), Fields: []byte(`"messages":[{"role":"user","content":"hello"}],"max_tokens":2`),
		Principal: &tenants.Principal{Tenant: "ten_a", Plan: &o.plan, FairnessID: "f_a"},
	}
	if err := o.Run(t.Context(), call, to); err != nil || to.head.Shutdown == nil || to.head.Shutdown.Year() != 2999 {
		t.Errorf("%v, announced %v", err, to.head.Shutdown)
	}
	call.ReceivedAt = time.Date(2999, 3, 1, 0, 0, 1, 0, time.UTC)
	var e *gateway.Error
	if err := o.Run(t.Context(), call, &caller{}); !errors.As(err, &e) || e.Cause != gateway.ModelNotFound || !strings.Contains(e.Message, "was shut down on 2999-03-01") {
		t.Errorf("after the date: %v", err)
	}
}
