package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
	"weir/scheduler/enginesim"
)

// rig is a pool of simulated engines behind a scheduler. The engines are
// called without a network, so that time can be virtual.
type rig struct {
	embedded
	engines map[string]*enginesim.Engine
}

// places is how many requests an engine of a rig runs at once.
const places = 16

func newRig(t *testing.T, cfg scheduler.Config, engines int) rig {
	t.Helper()
	r := rig{engines: map[string]*enginesim.Engine{}}
	var endpoints []scheduler.Endpoint
	for i := range engines {
		p := endpoint(fmt.Sprintf("engine-%d", i), places)
		endpoints = append(endpoints, p)
		r.engines[p.ID] = enginesim.New(enginesim.Config{MaxNumSeqs: places, ITL: 20 * time.Millisecond, KeepRequests: -1})
		t.Cleanup(r.engines[p.ID].Close)
	}
	r.embedded = healthy(t, cfg, endpoints...)
	return r
}

// ask sends one request of so many prompt and output tokens on its whole way,
// and returns the time to its first token.
func (r rig) ask(t *testing.T, band, input, output int) time.Duration {
	t.Helper()
	began := time.Now()
	l, err := r.Schedule(t.Context(), scheduler.Request{
		Flow: scheduler.Flow{FairnessID: fmt.Sprint("tenant of ", band), Band: band}, InputTokens: input, OutputTokens: output,
	})
	if err != nil {
		t.Errorf("band %d: %v", band, err)
		return 0
	}
	// Every prompt is another, so that none is cached.
	body := fmt.Sprintf(`{"model":"sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"%d %s"}]}`,
		output, rand.Int64(), strings.Repeat("word ", input))
	w := &firstToken{ResponseRecorder: httptest.NewRecorder(), began: began, lease: l}
	call := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	call.Header.Set("Content-Type", "application/json")
	r.engines[l.Targets()[0].Endpoint].ServeHTTP(w, call)
	l.End(scheduler.Outcome{InputTokens: input, OutputTokens: output})
	if w.ttft == 0 {
		t.Errorf("no token came, but status %d", w.Code)
	}
	return w.ttft
}

// firstToken notes when a stream's first token came.
type firstToken struct {
	*httptest.ResponseRecorder
	began time.Time
	ttft  time.Duration
	lease scheduler.Lease
}

func (w *firstToken) Write(b []byte) (int, error) {
	if w.ttft == 0 && strings.Contains(string(b), `"content":"S`) {
		w.ttft = time.Since(w.began)
		w.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
	}
	return len(b), nil
}

// open asks at random times at a mean rate, per second, for so long, and
// returns the times to the first tokens, sorted, when all are over.
func (r rig) open(t *testing.T, seed uint64, band int, rate float64, long time.Duration, input, output int) []time.Duration {
	t.Helper()
	chance := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	var all []time.Duration
	var asking sync.WaitGroup
	for end := time.Now().Add(long); time.Now().Before(end); {
		<-time.After(time.Duration(chance.ExpFloat64() / rate * float64(time.Second)))
		length := output/5 + chance.IntN(output*8/5) // else answers end in waves
		asking.Go(func() {
			ttft := r.ask(t, band, input, length)
			mu.Lock()
			all = append(all, ttft)
			mu.Unlock()
		})
	}
	asking.Wait()
	slices.Sort(all)
	return all
}

func p95(sorted []time.Duration) time.Duration { return sorted[len(sorted)*95/100] }

// A top band at 30 % of what the pool can do keeps its time to the first token
// while a lower one sends five times what the pool can do, the pool stays busy,
// and the low band gets all of its answers in the end. Without a reserve of
// free places it doesn't, which is why docs/scheduling.md recommends one.
func TestTheTopBandIsIsolatedFromAFlood(t *testing.T) {
	t.Parallel()
	const (
		engines  = 2
		input    = 200
		output   = 50
		capacity = 30.0 // requests per second: 32 places, about 1.07 s each
	)
	run := func(t *testing.T, low float64, minCeiling float64) (ttft time.Duration, busy float64) {
		t.Helper()
		r := newRig(t, scheduler.Config{
			TTL: -1, MaxFlowQueued: 1 << 20, MaxQueued: 1 << 20, MaxBandQueued: 1 << 20,
			Bands: bands(10, 0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: minCeiling},
		}, engines)
		const long = 40 * time.Second
		var flood sync.WaitGroup
		if low > 0 {
			flood.Go(func() { r.open(t, 1, 0, low, 6*time.Second, input, output) })
		}
		var measure sync.WaitGroup
		measure.Go(func() {
			n := 0
			for range 3000 { // while the flood lasts: seconds 2 to 30
				<-time.After(10 * time.Millisecond)
				if n++; n > 200 {
					busy += float64(r.Live()) / (engines * places) / 2800
				}
			}
		})
		top := r.open(t, 2, 10, 0.3*capacity, long, input, output)
		measure.Wait()
		flood.Wait()
		if s := r.State(); s.Queued != 0 || s.Live != 0 || len(s.Bands[1].Refused) > 0 {
			t.Errorf("%d queued, %d live, %v of the low band refused at the end", s.Queued, s.Live, s.Bands[1].Refused)
		}
		return p95(top), busy
	}
	synctest.Test(t, func(t *testing.T) {
		alone, _ := run(t, 0, 0.9)
		strict, _ := run(t, 5*capacity, 1)
		held, busy := run(t, 5*capacity, 0.9)
		t.Logf("TTFT p95 %v alone, %v under a flood without a reserve, %v with one, the pool %.1f %% busy", alone, strict, held, 100*busy)
		if ratio := float64(held) / float64(alone); ratio > 1.2 {
			t.Errorf("TTFT p95 is %.2f times that of an idle pool, want 1.2 at most", ratio)
		}
		if busy < 0.9 {
			t.Errorf("the pool was %.3f busy, want 0.9", busy)
		}
		if float64(strict)/float64(alone) <= 1.2 {
			t.Error("no reserve is needed: the test shows nothing")
		}
	})
}
