package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/tenants"
)

// member is a simulated server of a split pool behind a real listener.
type member struct {
	*enginesim.Engine
	server *httptest.Server
	entry  string // in the catalogue
}

// mill is a gateway over a real fleet of servers with roles, revisions and ranks.
type mill struct {
	*gateway.Gateway
	t       *testing.T
	shelf   *shelf
	fleet   *gateway.Fleet
	members map[string]*member
	numbers atomic.Int64
}

// newMill has a server for each name, such as r1-p0: the first one of revision
// r1 that prefills.
func newMill(t *testing.T, settings string, cfg enginesim.Config, names ...string) *mill {
	t.Helper()
	m := &mill{t: t, members: map[string]*member{}}
	for _, name := range names {
		revision, role := name[:2], "decode"
		if name[3] == 'p' {
			role = "prefill"
		}
		one := cfg
		one.Models, one.Role, one.Revision = []string{"sim"}, role, revision
		sim := enginesim.New(one)
		server := httptest.NewServer(sim)
		t.Cleanup(func() {
			sim.Close()
			server.Close()
		})
		m.members[name] = &member{sim, server, fmt.Sprintf("{id: %s, url: %q, engine: sim, role: %s, revision: %s, ranks: %d}", name, server.URL, role, revision, one.Ranks)}
	}
	m.shelf = newShelf(t, m.pool(settings, names))
	m.fleet = gateway.NewFleet(slog.New(slog.DiscardHandler), m.shelf, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- m.fleet.Run(ctx) }()
	m.Gateway = gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: m.shelf, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: m.fleet, Receipts: &ledger{},
	}, gateway.Config{SaltSecret: []byte("salt")})
	t.Cleanup(func() {
		m.Close()
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		m.fleet.Close()
	})
	m.healthy(names...)
	return m
}

func (m *mill) pool(settings string, names []string) string {
	entries := make([]string, len(names))
	for i, name := range names {
		entries[i] = m.members[name].entry
	}
	return "{name: main, " + settings + " endpoints: [" + strings.Join(entries, ", ") + "]}"
}

// healthy waits until probes have found them so.
func (m *mill) healthy(names ...string) {
	m.t.Helper()
	until(m.t, "all servers are healthy", func() bool {
		found := 0
		for _, e := range m.fleet.Pools()["main"].State.Endpoints {
			if slices.Contains(names, e.ID) && e.Health == scheduler.Healthy {
				found++
			}
		}
		return found == len(names)
	})
}

// live is how many leases each server holds, where it holds any.
func (m *mill) live() map[string]int {
	out := map[string]int{}
	for _, e := range m.fleet.Pools()["main"].State.Endpoints {
		if e.Live > 0 {
			out[e.ID] += e.Live
		}
	}
	return out
}

// stream asks for an answer of so many tokens to a prompt that is long and new.
func (m *mill) stream(ctx context.Context, tokens int, to gateway.Sink) error {
	return m.ask(ctx, m.numbers.Add(1), tokens, to)
}

// ask sends the n-th prompt.
func (m *mill) ask(ctx context.Context, n int64, tokens int, to gateway.Sink) error {
	text := strings.Repeat(fmt.Sprintf("question %d ", n), 300)
	fields := fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"max_tokens":%d,"min_tokens":%d`, text, tokens, tokens)
	err := m.Run(ctx, gateway.Call{
		ID: fmt.Sprintf("req_%d", n), Operation: gateway.Chat, Model: "pub", Fields: []byte(fields), Prompt: [2][]byte{nil, []byte(text)},
		Stream: true, Choices: 1, MaxTokens: tokens, ReceivedAt: time.Now(), Session: fmt.Sprint("chain ", n%50),
		Principal: &tenants.Principal{
			Tenant: "ten_a", Project: "prj_a", Key: "key_a", FairnessID: "f_a",
			Plan: &tenants.Plan{Name: "basic", Weight: 1, Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}},
		},
	}, to)
	if e, ok := errors.AsType[*gateway.Error](err); ok && e == nil {
		return nil
	}
	return err
}

// foreign is how many caches of another revision the servers were sent for.
func (m *mill) foreign() (n int) {
	for _, s := range m.members {
		n += s.Stats().Foreign
	}
	return n
}

func TestASplitPoolServes(t *testing.T) {
	t.Parallel()
	m := newMill(t, "", enginesim.Config{ZeroLatency: true, Ranks: 2}, "r1-p0", "r1-p1", "r1-d0", "r1-d1")
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if err := m.stream(t.Context(), 3, &caller{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	offered, fetched := 0, 0
	for name, s := range m.members {
		stats := s.Stats()
		offered, fetched = offered+stats.Offered, fetched+stats.Fetched
		if answered := stats.Finished - stats.Offered; name[3] == 'p' && answered != 0 {
			t.Errorf("%s, which only prefills, gave %d answers", name, answered)
		}
	}
	if offered != 40 || fetched != 40 {
		t.Errorf("%d prompts were computed for others and %d by others, want all 40", offered, fetched)
	}
	if live := m.live(); len(live) > 0 {
		t.Errorf("leases left: %v", live)
	}
}

// Whichever leg dies, the other one is free within a second.
func TestAFailedLegReleasesTheOther(t *testing.T) {
	t.Parallel()
	slow := enginesim.Config{PrefillRate: 800, ITL: 5 * time.Millisecond} // about a second for a prompt
	tests := []struct {
		name    string
		victim  byte // p or d
		decodes bool // the first token was seen
		served  bool // by another pair, where the prompt can't be what killed it
	}{
		{"the one that computes the prompt", 'p', false, true},
		{"the one that is to answer", 'd', false, false},
		{"the one that answers", 'd', true, false},
		{"the one that has computed it is not missed", 'p', true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMill(t, "", slow, "r1-p0", "r1-p1", "r1-d0", "r1-d1")
			began := make(chan struct{}, 1)
			to := &caller{onSend: func(string) {
				select {
				case began <- struct{}{}:
				default:
				}
			}}
			ended := make(chan error, 1)
			go func() { ended <- m.stream(t.Context(), 100, to) }()
			var pair map[string]int
			until(t, "a pair is at work", func() bool { pair = m.live(); return len(pair) == 2 })
			if tt.decodes {
				<-began
			} else {
				until(t, "the prompt is being computed", func() bool {
					for name := range pair {
						if name[3] == 'p' && m.members[name].Stats().Running == 0 {
							return false
						}
					}
					return true
				})
			}
			var victim, other string
			for name := range pair {
				if name[3] == tt.victim {
					victim = name
				} else {
					other = name
				}
			}
			_ = m.members[victim].server.Listener.Close()
			killed := time.Now()
			m.members[victim].server.CloseClientConnections()
			if !tt.decodes || tt.victim == 'd' {
				until(t, "the first pair is given back", func() bool { return m.live()[victim] == 0 })
				if took := time.Since(killed); took > time.Second {
					t.Errorf("the dead leg was held for %v", took)
				}
			}
			if tt.victim == 'd' {
				until(t, "the other leg is free", func() bool { return m.live()[other] == 0 && m.members[other].Stats().Running == 0 })
				if took := time.Since(killed); took > time.Second {
					t.Errorf("the other leg was held for %v", took)
				}
			}
			if err := <-ended; (err == nil) != tt.served {
				t.Errorf("ended with %v, want it served: %v", err, tt.served)
			}
			if live := m.live(); len(live) > 0 {
				t.Errorf("leases left: %v", live)
			}
		})
	}
}

// One engine may die by chance with any request. A request with which two died
// is not to meet a third.
func TestAPromptThatKillsWhoComputesItMeetsTwoAtMost(t *testing.T) {
	t.Parallel()
	m := newMill(t, "", enginesim.Config{ZeroLatency: true}, "r1-p0", "r1-p1", "r1-p2", "r1-d0", "r1-d1")
	for _, name := range []string{"r1-p0", "r1-p1", "r1-p2"} {
		_ = m.members[name].server.Listener.Close()
		m.members[name].server.CloseClientConnections()
	}
	for i, want := range []gateway.Cause{gateway.UpstreamStatus, gateway.SuspectRequest} {
		if got := causeOf(m.ask(t.Context(), 1, 2, &caller{})); got != want {
			t.Errorf("time %d: ended as %q, want %q", i+1, got, want)
		}
	}
	if live := m.live(); len(live) > 0 {
		t.Errorf("leases left: %v", live)
	}
}

const unscreened = `scheduler: {
  apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, featureGates: [flowControl],
  plugins: [
    {type: concurrency-detector}, {type: decode-filter}, {type: prefill-filter}, {type: active-request-scorer}, {type: weighted-random-picker},
    {type: always-disagg-pd-decider}, {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}],
  flowControl: {saturationDetector: {pluginRef: concurrency-detector}},
  schedulingProfiles: [
    {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}, {pluginRef: weighted-random-picker}]},
    {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}, {pluginRef: weighted-random-picker}]}]},`

// A rollout step by step, as the controller of a set with two prefill and four
// decode servers plans it, while requests go on.
func TestARolloutMixesNoRevisions(t *testing.T) {
	t.Parallel()
	steps := [][2][2]int{ // prefill and decode servers of r1, of r2
		{{2, 4}, {0, 0}}, {{2, 4}, {0, 1}}, {{2, 3}, {1, 1}}, {{2, 3}, {1, 2}}, {{1, 2}, {1, 2}}, {{1, 1}, {2, 3}}, {{0, 1}, {2, 3}}, {{0, 0}, {2, 4}},
	}
	for name, settings := range map[string]string{"with the screener": "", "without": unscreened} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var names []string
			for _, revision := range []string{"r1", "r2"} {
				for i := range 4 {
					names = append(names, fmt.Sprintf("%s-d%d", revision, i))
				}
				names = append(names, revision+"-p0", revision+"-p1")
			}
			m := newMill(t, settings, enginesim.Config{ZeroLatency: true}, names...)
			var failed atomic.Int64
			for _, step := range steps {
				var there []string
				for i, n := range step {
					for k := range n[0] {
						there = append(there, fmt.Sprintf("r%d-p%d", i+1, k))
					}
					for k := range n[1] {
						there = append(there, fmt.Sprintf("r%d-d%d", i+1, k))
					}
				}
				m.shelf.put(t, m.pool(settings, there))
				m.healthy(there...)
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						for range 10 {
							if err := m.stream(t.Context(), 2, &caller{}); err != nil {
								failed.Add(1)
							}
						}
					})
				}
				all.Wait()
			}
			foreign := m.foreign()
			if screened := settings == ""; screened != (foreign == 0) || screened && failed.Load() > 0 {
				t.Errorf("%d pairs of two revisions, %d of %d requests failed", foreign, failed.Load(), 40*len(steps))
			}
			served := map[string]int{}
			for name, s := range m.members {
				served[name[:2]] += s.Stats().Fetched
			}
			if served["r1"] == 0 || served["r2"] == 0 {
				t.Errorf("served by revision: %v", served)
			}
		})
	}
}
