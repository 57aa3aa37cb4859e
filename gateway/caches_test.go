package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/tenants"
)

// precise has a pool follow what its endpoints report.
const precise = `scheduler: {apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [
  {type: token-producer, parameters: {vllm: {timeout: %s}}}, {type: precise-prefix-cache-producer}, {type: weir-work-scorer}]},`

// reporter is a gateway over simulated servers that publish their caches.
type reporter struct {
	*gateway.Gateway
	t      *testing.T
	fleet  *gateway.Fleet
	shelf  *shelf
	sims   []*enginesim.Engine
	tokens atomic.Int64                     // times that a server was asked for them
	answer atomic.Pointer[http.HandlerFunc] // to that, instead of the server's
	n      int
}

func newReporter(t *testing.T, timeout string, ranks int, names ...string) *reporter {
	t.Helper()
	r := &reporter{t: t}
	var entries []string
	for _, name := range names {
		sim := enginesim.New(enginesim.Config{Models: []string{"sim"}, ZeroLatency: true, KVEvents: true, Ranks: ranks})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/tokenize" {
				r.tokens.Add(1)
				if answer := r.answer.Load(); answer != nil {
					(*answer)(w, req)
					return
				}
			}
			sim.ServeHTTP(w, req)
		}))
		events := publishAll(t, sim, ranks)
		t.Cleanup(func() { sim.Close(); server.Close() })
		r.sims = append(r.sims, sim)
		entries = append(entries, fmt.Sprintf("{id: %s, url: %q, engine: sim, ranks: %d, kv_events: \"tcp://*:%d\"}", name, server.URL, ranks, events))
	}
	r.shelf = newShelf(t, "{name: main, "+fmt.Sprintf(precise, timeout)+" endpoints: ["+strings.Join(entries, ", ")+"]}")
	r.fleet = gateway.NewFleet(slog.New(slog.DiscardHandler), r.shelf, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- r.fleet.Run(ctx) }()
	r.Gateway = gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: r.shelf, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: r.fleet, Receipts: &ledger{},
	}, gateway.Config{SaltSecret: []byte("salt")})
	t.Cleanup(func() {
		r.Close()
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		r.fleet.Close()
	})
	until(t, "all servers are healthy and followed", func() bool {
		followed := r.fleet.Following("main")
		for _, e := range r.state().Endpoints {
			if e.Health != scheduler.Healthy {
				return false
			}
		}
		for _, s := range followed {
			if !s.Connected {
				return false
			}
		}
		return len(followed) == len(names)*ranks
	})
	return r
}

// publishAll has each rank publish at ports that follow each other, and returns
// the first.
func publishAll(t *testing.T, sim *enginesim.Engine, ranks int) int {
	t.Helper()
	for range 20 {
		var all []net.Listener
		first := 0
		for rank := range ranks {
			address := "127.0.0.1:0"
			if rank > 0 {
				address = fmt.Sprintf("127.0.0.1:%d", first+rank)
			}
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
			if err != nil {
				break // somebody has the port
			}
			if rank == 0 {
				first = l.Addr().(*net.TCPAddr).Port
			}
			all = append(all, l)
		}
		if len(all) < ranks {
			for _, l := range all {
				_ = l.Close()
			}
			continue
		}
		for rank, l := range all {
			if err := sim.Publish(rank, l, nil); err != nil {
				t.Fatal(err)
			}
		}
		return first
	}
	t.Fatal("no free ports")
	return 0
}

func (r *reporter) state() scheduler.State { return r.fleet.Pools()["main"].State }

// known is how many blocks the servers reported that decide.
func (r *reporter) known() (blocks int) {
	add := func(c scheduler.CacheState) {
		if c.Trust == scheduler.Trusted {
			blocks += c.HBM
		}
	}
	for _, e := range r.state().Endpoints {
		if len(e.Ranks) == 0 {
			add(e.Cache)
		}
		for _, rank := range e.Ranks {
			add(rank.Cache)
		}
	}
	return blocks
}

// ask sends a question of a tenant and returns what the scheduler expected.
func (r *reporter) ask(tenant tenants.ID, text string) scheduler.Decision {
	r.t.Helper()
	r.n++
	id := fmt.Sprintf("req_%d", r.n)
	err := r.Run(r.t.Context(), gateway.Call{
		ID: id, Operation: gateway.Chat, Model: "pub", Choices: 1, MaxTokens: 1, ReceivedAt: time.Now(),
		Fields: fmt.Appendf(nil, `"messages":[{"role":"user","content":%q}],"max_tokens":1`, text), Prompt: [2][]byte{nil, []byte(text)},
		Principal: &tenants.Principal{
			Tenant: tenant, Project: "prj_a", Key: "key_a", FairnessID: "f_" + string(tenant),
			Plan: &tenants.Plan{Name: "basic", Weight: 1, Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}},
		},
	}, &caller{})
	if err != nil {
		r.t.Fatal(err)
	}
	s, _ := r.fleet.Scheduler("main")
	d, ok := s.(*scheduler.Embedded).Decision(id + ".1")
	if !ok {
		r.t.Fatalf("no decision on %s", id)
	}
	return d
}

func TestAPoolFollowsItsEnginesCaches(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			t.Parallel()
			r := newReporter(t, "1s", ranks, "a", "b")
			text := strings.Repeat("a long question of one tenant ", 100)
			first := r.ask("ten_a", text)
			if first.CachedTokens != 0 {
				t.Errorf("%d tokens are expected of a prompt that is new", first.CachedTokens)
			}
			until(t, "the engine has reported it", func() bool { return r.known() > 10 })
			again := r.ask("ten_a", text)
			if again.Endpoint != first.Endpoint || again.CachedTokens < 9*again.InputTokens/10 {
				t.Errorf("asked again it went to %s with %d of %d tokens expected; it was at %s", again.Endpoint, again.CachedTokens, again.InputTokens, first.Endpoint)
			}
			if other := r.ask("ten_b", text); other.CachedTokens != 0 {
				t.Errorf("%d tokens are expected of another tenant's prompt", other.CachedTokens)
			}
			if n := r.tokens.Load(); n != 2 {
				t.Errorf("an engine was asked %d times for the tokens of one prompt of two tenants", n)
			}
		})
	}
}

func TestEnginesThatTellNoTokensAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "1s", 1, "a", "b")
	r.answers(http.NotFound)
	text := strings.Repeat("a long question of one tenant ", 100)
	home := ""
	for i := range 10 {
		d := r.ask("ten_a", text)
		if i == 0 {
			home = d.Endpoint
		} else if d.Endpoint != home || d.CachedTokens == 0 {
			t.Errorf("without tokens it went to %s with %d expected, where what was sent there should decide", d.Endpoint, d.CachedTokens)
		}
	}
	if n := r.tokens.Load(); n != 3 {
		t.Errorf("an engine was asked %d times, want 3 and a pause", n)
	}
}

// answers has the servers answer so when they are asked for tokens.
func (r *reporter) answers(how http.HandlerFunc) { r.answer.Store(&how) }

func TestAPromptThatHasNoTokensStopsNobodyElsesFromBeingRead(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"since it is refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such role", http.StatusBadRequest) },
		"since it is empty":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"count":0,"tokens":[]}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReporter(t, "1s", 1, "a", "b")
			r.answers(answer)
			text := strings.Repeat("a long question of one tenant ", 100)
			for range 5 {
				r.ask("ten_a", text)
			}
			r.answer.Store(nil)
			r.ask("ten_b", text)
			if n := r.tokens.Load(); n != 6 {
				t.Errorf("an engine was asked %d times, want for each of 6 prompts", n)
			}
		})
	}
}

func TestAnAnswerLongerThanItsPromptsTokensIsNotTaken(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "1s", 1, "a", "b")
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"tokens":[1`+strings.Repeat(",1", 1<<20)+`]}`)
	})
	text := strings.Repeat("a long question of one tenant ", 100)
	if d := r.ask("ten_a", text); d.InputTokens > len(text) {
		t.Errorf("a prompt of %d bytes is taken for %d tokens", len(text), d.InputTokens)
	}
}

func TestATokenizerThatIsLateHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "1ns", 1, "a", "b")
	text := strings.Repeat("a long question of one tenant ", 100)
	home := r.ask("ten_a", text).Endpoint
	for range 4 {
		if d := r.ask("ten_a", text); d.Endpoint != home || d.CachedTokens == 0 {
			t.Errorf("it went to %s with %d tokens expected, where what was sent to %s should decide", d.Endpoint, d.CachedTokens, home)
		}
	}
}
