package scheduler_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// prompted is a request with a prompt of so many tokens of each text, one after
// the other.
func prompted(id string, tokens int, texts ...string) scheduler.Request {
	r := of("f")
	r.ID, r.InputTokens = id, tokens*len(texts)
	for _, text := range texts {
		r.Prompt = append(r.Prompt, bytes.Repeat([]byte(text), 4*tokens)[:4*tokens])
	}
	return r
}

func at(l scheduler.Lease) string { return l.Targets()[0].Endpoint }

// expected is how many tokens of the request were expected to be cached where
// it went.
func expected(t *testing.T, e embedded, id string) int {
	t.Helper()
	d, ok := e.Decision(id)
	if !ok {
		t.Fatalf("no decision on %s", id)
	}
	return d.CachedTokens
}

// served is a turn that is answered, with a report of the engine.
func served(t *testing.T, e embedded, r scheduler.Request, cached int) (where string) {
	t.Helper()
	l := take(t, e, r)
	l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
	l.End(scheduler.Outcome{InputTokens: r.InputTokens - cached, CachedTokens: cached, OutputTokens: 1})
	return at(l)
}

func TestConversationStaysWhereItsPrefixIs(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8), endpoint("b", 8), endpoint("c", 8))
	home := map[int]string{}
	for turn := range 4 {
		for chat := range 6 {
			texts := []string{"system"}
			for n := range turn + 1 {
				texts = append(texts, fmt.Sprintf("chat %d turn %d", chat, n))
			}
			id := fmt.Sprintf("%d.%d", chat, turn)
			where := served(t, e, prompted(id, 640, texts...), 0)
			if turn > 0 && where != home[chat] {
				t.Errorf("turn %d of chat %d went to %s, those before it to %s", turn, chat, where, home[chat])
			}
			if got, want := expected(t, e, id), 640*(turn+1); turn > 0 && got != want {
				t.Errorf("turn %d of chat %d: %d tokens expected in the cache, want the %d of the turns before", turn, chat, got, want)
			}
			home[chat] = where
		}
	}
}

func TestTenantsDoNotShareAPrefix(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8))
	for _, tt := range []struct {
		id, salt, model string
		want            int
	}{
		{"first", "tenant x", "m", 0},
		{"the same tenant", "tenant x", "m", 6400},
		{"another tenant", "tenant y", "m", 0},
		{"another model", "tenant x", "n", 0},
		{"no tenant", "", "m", 0},
	} {
		r := prompted(tt.id, 6400, "a prompt that all of them send")
		r.CacheSalt, r.Model = tt.salt, tt.model
		served(t, e, r, 0)
		if got := expected(t, e, tt.id); got != tt.want {
			t.Errorf("%s: %d tokens expected in the cache, want %d", tt.id, got, tt.want)
		}
	}
}

func TestPromptThatWasNotComputedIsNotRemembered(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		token bool // whether it showed one
		end   scheduler.Result
		want  int
	}{
		{"an endpoint that failed at once has nothing", false, scheduler.EndpointFault, 0},
		{"an endpoint that was full has nothing", false, scheduler.Overloaded, 0},
		{"a prompt that was refused is nowhere", false, scheduler.CallerFault, 0},
		{"an endpoint that broke off has it", true, scheduler.EndpointFault, 6400},
		{"a caller who left has had it computed", false, scheduler.Abandoned, 6400},
		{"an answer without a stream", false, scheduler.Completed, 6400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := healthy(t, scheduler.Config{OverloadPause: 1, Breaker: scheduler.Breaker{Faults: 99}}, endpoint("a", 8))
			l := take(t, e, prompted("1", 6400, "text"))
			if tt.token {
				l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
			}
			l.End(scheduler.Outcome{Result: tt.end})
			r := prompted("2", 6400, "text")
			r.TTL = time.Minute
			take(t, e, r)
			if got := expected(t, e, "2"); got != tt.want {
				t.Errorf("%d tokens expected in the cache, want %d", got, tt.want)
			}
		})
	}
}

func TestCacheThatWasLostIsForgotten(t *testing.T) {
	t.Parallel()
	const tokens = 6400
	for name, tells := range map[string]bool{"an engine that tells what it had cached": true, "an engine that never tells": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := healthy(t, scheduler.Config{}, endpoint("a", 8))
			cached := func(n int) int {
				if tells {
					return n
				}
				return 0
			}
			served(t, e, prompted("1", tokens, "old"), 0)
			served(t, e, prompted("2", tokens, "x"), 0)
			served(t, e, prompted("3", tokens, "x"), cached(tokens-1))
			// The engine is started anew: of what it had nothing is left.
			served(t, e, prompted("4", tokens, "x"), 0)
			want := 0
			if !tells {
				want = tokens
			}
			take(t, e, prompted("5", tokens, "old"))
			if got := expected(t, e, "5"); got != want {
				t.Errorf("%d tokens of an old prompt expected in the cache, want %d", got, want)
			}
			take(t, e, prompted("6", tokens, "x"))
			if got := expected(t, e, "6"); got != tokens {
				t.Errorf("%d tokens of the latest prompt expected in the cache, want all of them", got)
			}
		})
	}
}

func TestPromptThatIsBeingComputedIsNotTakenForLost(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8))
	served(t, e, prompted("1", 6400, "old"), 0)
	served(t, e, prompted("2", 6400, "old"), 6399)
	first := take(t, e, prompted("3", 6400, "new"))
	served(t, e, prompted("4", 6400, "new"), 0) // at the same time, so that it hits nothing
	first.End(scheduler.Outcome{InputTokens: 6400})
	take(t, e, prompted("5", 6400, "old"))
	if got := expected(t, e, "5"); got != 6400 {
		t.Errorf("%d tokens expected in the cache, want 6400", got)
	}
}

func TestHotPrefixSpillsOver(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 64), endpoint("b", 64), endpoint("c", 64), endpoint("d", 64))
	on := map[string]int{}
	for i := range 80 { // at once, under one system prompt of 4,000 tokens
		r := prompted(fmt.Sprint(i), 4032, "system")
		r.Prompt, r.InputTokens = append(r.Prompt, fmt.Appendf(nil, "%400d", i)), 4132
		on[at(take(t, e, r))]++
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if on[id] < 10 || on[id] > 30 {
			t.Errorf("80 requests with a hot prefix lie as %v, want them spread", on)
			break
		}
	}
}

func TestSessionMovesWhenItsHolderIsFull(t *testing.T) {
	t.Parallel()
	for name, prompts := range map[string]bool{"with its prompt": true, "by its name alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := healthy(t, scheduler.Config{}, endpoint("a", 1), endpoint("b", 1))
			turn := func(n int) scheduler.Request {
				r := prompted(fmt.Sprint(n), 6400, "history")
				r.Session, r.Turn = "s", n
				if !prompts {
					r.Prompt = nil
				}
				return r
			}
			first := served(t, e, turn(1), 0)
			if where := served(t, e, turn(2), 6000); where != first {
				t.Fatalf("the second turn went to %s, the first to %s", where, first)
			}
			blocker := take(t, e, turn(3)) // another request of the session is still there
			moved := served(t, e, turn(4), 0)
			if moved == first || at(blocker) != first {
				t.Fatalf("a turn went to %s while the session's %s was full", moved, first)
			}
			blocker.End(scheduler.Outcome{InputTokens: 400, CachedTokens: 6000, OutputTokens: 1})
			if where := served(t, e, turn(5), 6000); !prompts && where != moved {
				t.Errorf("the session went to %s after it had moved to %s", where, moved)
			}
			if got := expected(t, e, "5"); got < 6400 {
				t.Errorf("%d tokens expected in the cache, want all", got)
			}
		})
	}
}

func TestAffinityHintLeadsToWhatWasShared(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8), endpoint("b", 8), endpoint("c", 8))
	hinted := func(id string) scheduler.Request {
		r := of("f")
		r.ID, r.InputTokens, r.Affinity = id, 5000, "key"
		return r
	}
	where := served(t, e, hinted("1"), 0)
	served(t, e, hinted("2"), 0)
	for i := 3; i < 6; i++ {
		where = served(t, e, hinted(fmt.Sprint(i)), 4000)
	}
	if again := served(t, e, hinted("9"), 4000); again != where || expected(t, e, "9") != 4000 {
		t.Errorf("went to %s expecting %d tokens, want %s and the 4000 that were shared before", again, expected(t, e, "9"), where)
	}
}

// A scrape that finds one endpoint empty must not send everybody there until
// the next one.
func TestNoHerdBetweenScrapes(t *testing.T) {
	t.Parallel()
	for name, scorer := range map[string]string{"by queues": "queue-scorer", "by running requests": "running-requests-size-scorer", "by load": "load-aware-scorer"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := scheduler.Config{Profile: scheduler.Profile{Scorers: []scheduler.Scorer{{Kind: scorer, Weight: 1}}}}
			e := healthy(t, cfg, endpoint("a", 64), endpoint("b", 64), endpoint("c", 64))
			now := time.Now()
			for id, n := range map[string]int{"a": 0, "b": 6, "c": 6} {
				e.SetLoad(id, scheduler.Load{Waiting: n, Running: n, At: now})
			}
			on := map[string]int{}
			for range 36 {
				on[at(take(t, e, of("f")))]++
			}
			if on["a"] != 16 || on["b"] != 10 || on["c"] != 10 {
				t.Errorf("36 requests lie as %v, want 16, 10 and 10, so that all have the same", on)
			}
			e.SetLoad("a", scheduler.Load{Waiting: 10, Running: 10, At: now}) // of the 16 some have ended
			for range 6 {
				if where := at(take(t, e, of("f"))); where != "a" {
					t.Errorf("a request went to %s, as if what a tells came on top of what it was sent before", where)
				}
			}
		})
	}
}

func TestNewEndpointGetsItsShareSlowly(t *testing.T) {
	t.Parallel()
	limits := func(e embedded) (all []int) {
		for _, p := range e.State().Endpoints {
			all = append(all, p.Limit)
		}
		return all
	}
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 20))
		if got := limits(e)[0]; got != 20 {
			t.Fatalf("the only endpoint may hold %d, want all 20 at once: there is no other", got)
		}
		synctest.Sleep(time.Minute)
		e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 20), endpoint("b", 20)})
		for range 20 + 1 {
			take(t, e, of("f"))
		}
		waits := send(t.Context(), e, of("f"))
		if a := <-waits; a.err != nil || a.lease.Targets()[0].Endpoint != "b" || a.after != time.Second {
			t.Errorf("the second lease of a new endpoint came with %+v, want it after a second of ten", a)
		}
		synctest.Sleep(4 * time.Second)
		if got := limits(e)[1]; got != 10 {
			t.Errorf("after half of its slow start the endpoint may hold %d, want 10", got)
		}
		e.SetHealth("a", scheduler.Unhealthy)
		if got := limits(e)[1]; got != 20 {
			t.Errorf("the only endpoint that works may hold %d, want all 20", got)
		}
		e.SetHealth("a", scheduler.Healthy)
		synctest.Sleep(5 * time.Second)
		if got := limits(e)[1]; got != 20 {
			t.Errorf("after its slow start the endpoint may hold %d, want 20", got)
		}
	})
}

func TestFullEndpointTakesMoreForItsCacheAlone(t *testing.T) {
	t.Parallel()
	chat := func(id int) scheduler.Request { return prompted(fmt.Sprint(id), 64_000, "history") }
	cold := func(id int) scheduler.Request { return prompted(fmt.Sprint(id), 64, fmt.Sprint(id)) }
	tests := []struct {
		name        string
		cfg         scheduler.Config
		other       int // what the other endpoint may hold
		chats, cold int
		want        [2]int // leases where the prompt is, and on the other
	}{
		{"up to half of its limit more", scheduler.Config{}, 8, 14, 0, [2]int{12, 2}},
		{"and nothing that it has not cached", scheduler.Config{}, 8, 14, 2, [2]int{12, 4}},
		{"as long as the pool holds less than it may", scheduler.Config{}, 8, 20, 0, [2]int{12, 4}},
		{"but never while another is idle", scheduler.Config{}, 2, 11, 0, [2]int{10, 1}},
		{"unless it is told not to", scheduler.Config{Profile: scheduler.Profile{Headroom: -1}}, 8, 20, 0, [2]int{8, 8}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.TTL = -1
			e := healthy(t, tt.cfg, endpoint("home", 8))
			served(t, e, chat(0), 0)
			e.SetEndpoints([]scheduler.Endpoint{endpoint("home", 8), endpoint("other", tt.other)})
			on := map[string]int{}
			for i := range tt.chats + tt.cold {
				r := chat(i + 1)
				if i >= tt.chats {
					r = cold(i)
				}
				r.TTL = -1 // not to wait
				if l, err := e.Schedule(t.Context(), r); err == nil {
					on[at(l)]++
				}
			}
			if got := [2]int{on["home"], on["other"]}; got != tt.want {
				t.Errorf("the endpoints hold %v, want %v", got, tt.want)
			}
		})
	}
}

// mixed runs requests of 1,000 new tokens through endpoints that prefill one
// after the other at speeds of their own, at 70 % of what they can do together.
// It returns how many went where and the mean time to first token.
func mixed(t *testing.T, say bool, speeds map[string]float64) (on map[string]int, mean time.Duration) {
	t.Helper()
	var endpoints []scheduler.Endpoint
	free, sum := map[string]time.Time{}, 0.0
	for _, id := range []string{"a", "b", "c"} {
		p := endpoint(id, 1000)
		if say {
			p.Speed = speeds[id]
		}
		endpoints = append(endpoints, p)
		sum += speeds[id]
	}
	e := healthy(t, scheduler.Config{}, endpoints...)
	chance := rand.New(rand.NewPCG(1, 1))
	on = map[string]int{}
	const n = 4000
	done := make(chan time.Duration, n)
	for i := range n {
		l := take(t, e, prompted(fmt.Sprint(i), 1000, fmt.Sprint(i)))
		began := time.Now()
		begins := began
		if free[at(l)].After(begins) {
			begins = free[at(l)]
		}
		ends := begins.Add(time.Duration(1000 / speeds[at(l)] * float64(time.Second)))
		free[at(l)] = ends
		go func() {
			<-time.After(time.Until(ends))
			l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
			l.End(scheduler.Outcome{InputTokens: 1000, OutputTokens: 1})
			done <- time.Since(began)
		}()
		if i >= n/4 {
			on[at(l)]++ // once it knows them
		}
		synctest.Sleep(time.Duration(chance.ExpFloat64() * 1000 / (0.7 * sum) * float64(time.Second)))
	}
	for range n {
		mean += <-done / n
	}
	return on, mean
}

func TestMixedPoolIsLoadedByWhatEachCanTake(t *testing.T) {
	t.Parallel()
	speeds := map[string]float64{"a": 10_000, "b": 10_000, "c": 1000} // c takes 1 s for what takes the others 100 ms
	for name, say := range map[string]bool{"speeds that the operator states": true, "speeds that it finds out": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				on, mean := mixed(t, say, speeds)
				if part := float64(on["c"]) / 3000; part > 0.06 {
					t.Errorf("requests lie as %v: %.1f %% on the slow one, which can take 4.8 %%", on, 100*part)
				}
				if mean > 200*time.Millisecond {
					t.Errorf("the first token took %v in the mean", mean)
				}
			})
		})
	}
}

func TestLeaseNamesFallbacks(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{Profile: scheduler.Profile{Picker: scheduler.Picker{MaxEndpoints: 2}}}, endpoint("a", 8), endpoint("b", 8), endpoint("c", 8))
	served(t, e, prompted("1", 6400, "x"), 0)
	for range 3 {
		targets := take(t, e, prompted("2", 6400, "x")).Targets()
		if len(targets) != 2 || targets[0].Endpoint != "a" || targets[1].Endpoint == "a" || targets[1].URL == "" {
			t.Errorf("targets are %+v, want the endpoint that has the prompt and another one", targets)
		}
	}
}
