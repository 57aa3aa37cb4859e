package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
)

// envoy is a gateway of llm-d that answers by a script, one line a request:
// headers, status and body. After the script it serves.
type envoy struct {
	*httptest.Server

	mu      sync.Mutex
	script  []func(http.ResponseWriter)
	headers []http.Header
}

const bypass = "bypass"

func startEnvoy(t *testing.T, script ...func(http.ResponseWriter)) *envoy {
	t.Helper()
	e := &envoy{script: script}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "nothing here", http.StatusNotFound) // which still shows that it lives
			return
		}
		e.mu.Lock()
		e.headers = append(e.headers, r.Header.Clone())
		var next func(http.ResponseWriter)
		if len(e.script) > 0 {
			next, e.script = e.script[0], e.script[1:]
		}
		e.mu.Unlock()
		if next == nil {
			next = servedWith("x-llm-d-flow-queue-duration-ms", "1500")
		}
		next(w)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *envoy) asked() []http.Header {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.headers
}

// servedWith is an answer with a header; bypass has none.
func servedWith(name, value string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if name != bypass {
			w.Header().Set(name, value)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"id":"c","model":"sim","choices":[{"index":0,"delta":{"content":"one"},"finish_reason":"stop"}]}`+"\n\n"+
			`data: {"id":"c","model":"sim","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`+"\n\ndata: [DONE]\n\n")
	}
}

// dropped is a refusal by the scheduler behind the gateway.
func dropped(status int, reason, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if reason != "" {
			w.Header().Set("x-llm-d-request-dropped-reason", reason)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func gatewayPool(all ...*envoy) string {
	var list []string
	for i, e := range all {
		list = append(list, fmt.Sprintf(`{id: gw%d, url: %q}`, i+1, e.URL))
	}
	return `{name: main, endpoints: [` + strings.Join(list, ", ") + `], scheduler: {kind: llm-d-http, objectives: {standard: bronze}}}`
}

func TestAPoolBehindAGatewayOfLLMD(t *testing.T) {
	t.Parallel()
	e := startEnvoy(t)
	r := buildRemote(t, gatewayPool(e))
	if text, err := r.ask(t, "req_1", ""); err != nil || !strings.HasSuffix(text, doneEvent) {
		t.Fatalf("%v, the caller saw %s", err, text)
	}
	h := e.asked()[0]
	for _, name := range []string{"x-llm-d-inference-objective", "x-gateway-inference-objective"} {
		if h.Get(name) != "bronze" {
			t.Errorf("%s is %q", name, h.Get(name))
		}
	}
	if h.Get("x-llm-d-inference-fairness-id") != "f_a" || h.Get("X-Request-Id") != "req_1.1" {
		t.Errorf("it was sent %v", h)
	}
	all := r.fleet.DecisionsOn("req_1")
	if len(all) != 1 || all[0].Endpoint != "gw1" || all[0].Shared.Queued == nil || *all[0].Shared.Queued != 1500*time.Millisecond {
		t.Errorf("the decision is told as %+v", all)
	}
	if err := r.fleet.CheckShared(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.fleet.Probe(t.Context(), "main", "gw1"); err != nil {
		t.Errorf("a gateway that answers: %v", err)
	}
	if s := r.fleet.Pools()["main"].State; len(s.Endpoints) != 0 {
		t.Errorf("gateways are watched as engines: %+v", s.Endpoints)
	}
}

func TestASessionGoesBackWhereTheSchedulerNotedIt(t *testing.T) {
	t.Parallel()
	e := startEnvoy(t, servedWith("x-session-token", "cG9vbC9h"))
	r := buildRemote(t, gatewayPool(e))
	for i, session := range []string{"chain", "chain", "other", ""} {
		to := &caller{}
		if err := r.Run(t.Context(), r.house.call(func(c *gateway.Call) { c.ID, c.Stream, c.Session = fmt.Sprint("req_", i), true, session }), to); err != nil {
			t.Fatal(err)
		}
	}
	var tokens []string
	for _, h := range e.asked() {
		tokens = append(tokens, h.Get("x-session-token"))
		if id := h.Get("x-session-id"); strings.Contains(id, "ten_a") || strings.Contains(id, "chain") {
			t.Errorf("the session is called %s", id)
		}
	}
	if d := cmp.Diff([]string{"", "cG9vbC9h", "", ""}, tokens); d != "" {
		t.Errorf("tokens (-want +got):\n%s", d)
	}
}

func TestAGatewayThatBypassesItsSchedulerIsFoundOut(t *testing.T) {
	t.Parallel()
	e := startEnvoy(t, servedWith("x-went-into-resp-headers", "true"), servedWith(bypass, ""), dropped(http.StatusBadRequest, "", `{"error":{"message":"no"}}`))
	r := buildRemote(t, gatewayPool(e))
	if _, err := r.ask(t, "req_1", ""); err != nil {
		t.Fatal(err)
	}
	if err := r.fleet.CheckShared(t.Context()); err != nil {
		t.Errorf("an older scheduler was taken for none: %v", err)
	}
	if _, err := r.ask(t, "req_2", ""); err != nil {
		t.Errorf("a bypass is served all the same: %v", err)
	}
	if err := r.fleet.CheckShared(t.Context()); err == nil || !strings.Contains(err.Error(), "pass without asking its scheduler (1 so far)") {
		t.Errorf("readiness says %v", err)
	}
	if _, err := r.ask(t, "req_3", ""); cause(err) != gateway.UpstreamRefused {
		t.Errorf("a request that is wrong: %v", err)
	}
	if s := r.fleet.Shared()["main"]; s.Queued != 1 || s.Bypassed != 1 || s.BypassedAt.IsZero() {
		t.Errorf("counted %+v", s)
	}
}

func TestRefusalsThroughAGatewayAreTheSchedulers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first func(http.ResponseWriter)
		want  gateway.Cause // empty: it is served
		tries int           // at both gateways
	}{
		"full":                            {dropped(429, "rejected-saturated", "inference error: ResourceExhausted - x"), gateway.PoolFull, 1},
		"its time was up":                 {dropped(429, "rejected-ttl-expired", `{"error":{"message":"ttl","type":"rate_limit_error","code":429}}`), gateway.QueueTimeout, 1},
		"load was shed":                   {dropped(500, "", "inference error: Internal - request cannot be admitted: p"), gateway.Shed, 1},
		"it is about to stop":             {dropped(503, "rejected-shutting-down", ""), "", 2},
		"it knows no endpoint":            {dropped(503, "rejected-no-endpoints", ""), "", 2},
		"it was evicted before it began":  {dropped(429, "evicted", "request evicted by flow control"), "", 2},
		"the gateway itself has no route": {dropped(503, "", "no healthy upstream"), "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := startEnvoy(t, test.first), startEnvoy(t)
			r := buildRemote(t, gatewayPool(first, second))
			_, err := r.ask(t, "req_1", "")
			if cause(err) != test.want {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if n := len(first.asked()) + len(second.asked()); n != test.tries {
				t.Errorf("%d tries, want %d", n, test.tries)
			}
		})
	}
}

func TestAGatewayPoolFollowsItsEndpoints(t *testing.T) {
	t.Parallel()
	first, second := startEnvoy(t), startEnvoy(t)
	r := buildRemote(t, gatewayPool(first))
	before, _ := r.fleet.Scheduler("main")
	first.Close()
	r.shelf.put(t, gatewayPool(second))
	until(t, "the other gateway is used", func() bool { now, _ := r.fleet.Scheduler("main"); return now != before })
	if _, err := r.ask(t, "req_1", ""); err != nil {
		t.Error(err)
	}
	r.shelf.put(t, strings.Replace(gatewayPool(second), "url:", "drain: true, url:", 1))
	until(t, "one that drains takes nothing", func() bool { _, err := r.ask(t, "req_2", ""); return cause(err) == gateway.NoEndpoint })
	last, _ := r.fleet.Scheduler("main")
	r.fleet.Close()
	_, err := last.Schedule(t.Context(), scheduler.Request{ID: "x.1"})
	if refusal, ok := errors.AsType[*scheduler.Refusal](err); !ok || refusal.Reason != scheduler.ShuttingDown {
		t.Errorf("a closed fleet: %v", err)
	}
}

// The engines that a pool had are watched no more once gateways stand before them.
func TestAPoolThatIsPutBehindAGatewayWatchesNoEngines(t *testing.T) {
	t.Parallel()
	e := startEngine(t)
	r := buildRemote(t, `{name: main, endpoints: [`+listed(e)+`]}`)
	if n := len(r.fleet.Pools()["main"].State.Endpoints); n != 1 {
		t.Fatalf("%d endpoints are watched", n)
	}
	r.shelf.put(t, gatewayPool(startEnvoy(t)))
	until(t, "nothing is watched", func() bool { return len(r.fleet.Pools()["main"].State.Endpoints) == 0 })
}

// A request may wait behind a gateway: should this process die then, nobody can
// know that a model server had it, and nobody pays for it.
func TestWhatWaitsBehindAGatewayCountsAsUnsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, w, house := t.TempDir(), newWire(), build(t, nil)
		journaled(t, dir)(house)
		var seen []bool
		look := func() {
			for _, in := range journalOf(t, dir) {
				seen = append(seen, in.Dispatched)
			}
		}
		const pause = 1100 * time.Millisecond // one checkpoint
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			synctest.Sleep(pause)
			look()
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, `data: {"id":"c","model":"sim","choices":[{"index":0,"delta":{"content":"one"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
			synctest.Sleep(pause)
			look()
			servedWith(bypass, "")(w)
		})}
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(w) })
		source := newShelf(t, `{name: main, endpoints: [{id: gw, url: "http://gw.test"}], scheduler: {kind: llm-d-http}}`)
		fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), source, nil)
		house.config.Dial = w.dial
		g := gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
			Catalogue: source, Limits: house.limits, Intents: house.limits, Pools: fleet, Receipts: house.ledger,
		}, house.config)
		ctx, cancel := context.WithCancel(t.Context())
		running.Go(func() { _ = g.Checkpoint(ctx) })
		call := house.call(func(c *gateway.Call) { c.Stream = true })
		if err := g.Run(t.Context(), call, &caller{}); err != nil {
			t.Error(err)
		}
		if !slices.Equal(seen, []bool{false, true}) {
			t.Errorf("dispatched, while it waits and while it is answered: %v", seen)
		}
		cancel()
		g.Close()
		fleet.Close()
		_ = server.Close()
		running.Wait()
	})
}
