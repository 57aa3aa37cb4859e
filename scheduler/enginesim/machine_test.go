package enginesim

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func bench(t *testing.T, cfg Config) *machine {
	t.Helper()
	cfg = cfg.withDefaults()
	m := newMachine(cfg, newMetrics(cfg, prometheus.NewRegistry(), 0), cfg.cache(0))
	t.Cleanup(m.close)
	return m
}

// seq makes a sequence whose prompt is the same for the same kind.
func seq(kind string, prompt, total int) *sequence {
	h := newHasher(kind)
	var hashes []uint64
	for i := range prompt + total {
		hashes = h.add(hashes, token(i))
	}
	return &sequence{prompt: prompt, total: total, hashes: hashes, finish: "length", wake: make(chan struct{}, 1)}
}

// finish returns when s is over, and how long after start that was.
func finish(s *sequence, start time.Time) time.Duration {
	for !s.over.Load() {
		<-s.wake
	}
	return time.Since(start)
}

func submit(t *testing.T, m *machine, seqs ...*sequence) time.Time {
	t.Helper()
	if err := m.submit(seqs...); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

func TestTimingOfOneSequence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{TTFT: 10 * time.Millisecond, ITL: 5 * time.Millisecond, PrefillRate: 1000})
		s := seq("a", 101, 4)
		start := submit(t, m, s)
		<-s.wake
		// TTFT 10 ms + one step of 5 ms with 100 tokens beyond the first at 1 ms.
		if got := time.Since(start); got != 115*time.Millisecond || s.made.Load() != 1 {
			t.Errorf("first token after %v, made %d", got, s.made.Load())
		}
		if got := finish(s, start); got != 130*time.Millisecond || s.made.Load() != 4 {
			t.Errorf("over after %v, made %d", got, s.made.Load())
		}
	})
}

func TestStepsGrowWithTheBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{TTFT: time.Millisecond, ITL: 5 * time.Millisecond, ITLPerSeq: time.Millisecond, PrefillRate: 1e6})
		seqs := []*sequence{seq("a", 1, 11), seq("b", 1, 11), seq("c", 1, 11)}
		start := submit(t, m, seqs...)
		for _, s := range seqs {
			if got := finish(s, start); got != 78*time.Millisecond { // 1 + 11 steps of 5+2 ms
				t.Errorf("over after %v", got)
			}
		}
	})
}

func TestALargeStepIsToldOverTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{TTFT: time.Millisecond, ITL: 50 * time.Millisecond, ITLPerSeq: 1, PrefillRate: 1e9})
		start := time.Now()
		told := make(chan time.Duration, 40)
		var seqs []*sequence
		for range 40 {
			seqs = append(seqs, seq("a", 1, 3))
		}
		submit(t, m, seqs...)
		for _, s := range seqs {
			go func() {
				<-s.wake
				told <- time.Since(start).Round(time.Millisecond) - 51*time.Millisecond
			}()
		}
		at := map[time.Duration]int{}
		for range seqs {
			at[<-told]++
		}
		for ms := range 5 {
			if n := at[time.Duration(ms)*time.Millisecond]; n != 8 {
				t.Errorf("after %d ms %d sequences were told, want 8: %v", ms, n, at)
			}
		}
		for _, s := range seqs {
			finish(s, start)
		}
		if got := time.Since(start).Round(time.Millisecond); got != 151*time.Millisecond {
			t.Errorf("over after %v: telling must not lengthen a step", got)
		}
	})
}

func TestALongPromptSharesStepsWithRunningSequences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{TTFT: time.Millisecond, ITL: time.Millisecond, ITLPerSeq: 1, PrefillRate: 100_000, MaxBatchedTokens: 100})
		talker := seq("talker", 1, 50)
		submit(t, m, talker)
		<-talker.wake
		long := seq("long", 1000, 1)
		start := submit(t, m, long)
		before := talker.made.Load()
		finish(long, start)
		// 99 prompt tokens fit beside the talker's one in each step.
		if got := talker.made.Load() - before; got < 10 || got > 14 {
			t.Errorf("the running sequence made %d tokens during the prefill", got)
		}
	})
}

func TestSlotsAreGivenInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{MaxNumSeqs: 2, TTFT: time.Millisecond, ITL: time.Millisecond, ITLPerSeq: 1, PrefillRate: 1e9})
		var seqs []*sequence
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			seqs = append(seqs, seq(name, 1, 10))
		}
		start := submit(t, m, seqs...)
		synctest.Wait()
		if running, waiting, _ := m.load(); running != 2 || waiting != 3 {
			t.Errorf("running %d, waiting %d", running, waiting)
		}
		var ends []time.Duration
		for _, s := range seqs {
			ends = append(ends, finish(s, start).Round(time.Millisecond))
		}
		if ends[0] != ends[1] || ends[2] <= ends[1] || ends[2] != ends[3] || ends[4] <= ends[3] {
			t.Errorf("ends = %v, want three waves", ends)
		}
	})
}

func TestAQueueThatIsFullRefusesAll(t *testing.T) {
	t.Parallel()
	m := bench(t, Config{MaxNumSeqs: 1, MaxWaiting: 2, TTFT: time.Hour})
	if err := m.submit(seq("a", 1, 1), seq("b", 1, 1), seq("c", 1, 1)); !errors.Is(err, errQueueFull) {
		t.Errorf("err = %v", err)
	}
	if running, waiting, _ := m.load(); running+waiting != 0 {
		t.Error("some of a refused submission stayed")
	}
}

func TestAbortFreesTheSlotAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{MaxNumSeqs: 1, TTFT: time.Millisecond, ITL: 5 * time.Millisecond, PrefillRate: 1e9})
		first, second := seq("a", 100, 1000), seq("b", 100, 3)
		submit(t, m, first, second)
		for first.made.Load() < 7 {
			<-first.wake
		}
		m.abort(first)
		if running, _, used := m.load(); running != 0 || used != 0 {
			t.Errorf("after abort: running %d, KV used %v", running, used)
		}
		finish(second, time.Now())
		if first.made.Load() != 7 || !first.over.Load() {
			t.Errorf("aborted sequence made %d", first.made.Load())
		}
		if s := m.counts(); s.GeneratedTokens != 10 || s.Aborted != 1 || s.Finished != 1 {
			t.Errorf("stats = %+v", s)
		}
		m.abort(first, second) // both are over: nothing changes
		if m.counts().Aborted != 1 {
			t.Error("an ended sequence was aborted again")
		}
	})
}

func TestPrefixIsFoundByFullBlocksButTheLastToken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                     string
		first, second            string
		prompt, made, next, want int
	}{
		{"same prompt, partial last block", "a", "a", 100, 1, 100, 96},
		{"same prompt of whole blocks keeps one block to compute", "a", "a", 96, 1, 96, 80},
		{"longer prompt reuses the shorter", "a", "a", 64, 1, 200, 64},
		{"the answer is reused by the next turn", "a", "a", 64, 65, 200, 128},
		{"another salt finds nothing", "a", "b", 100, 1, 100, 0},
		{"less than a block", "a", "a", 15, 1, 15, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := bench(t, Config{})
				finish1 := seq(tt.first, tt.prompt, tt.made)
				finish(finish1, submit(t, m, finish1))
				s := seq(tt.second, tt.next, 1)
				finish(s, submit(t, m, s))
				if s.first != tt.want {
					t.Errorf("cached %d tokens, want %d", s.first, tt.want)
				}
			})
		})
	}
}

func TestCachedTokensShortenThePrefill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{TTFT: time.Millisecond, ITL: time.Millisecond, PrefillRate: 1000})
		cold, warm := seq("a", 1601, 1), seq("a", 1601, 1)
		coldTime := finish(cold, submit(t, m, cold))
		warmTime := finish(warm, submit(t, m, warm))
		if coldTime != 1602*time.Millisecond || warmTime != 2*time.Millisecond {
			t.Errorf("cold %v, warm %v", coldTime, warmTime)
		}
	})
}

func TestTheLeastRecentlyUsedPrefixGoesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{KVBlocks: 7}) // two prompts of three full blocks, and one to fill
		use := func(kind string) int {
			s := seq(kind, 49, 1)
			finish(s, submit(t, m, s))
			return s.first
		}
		use("a")
		use("b")
		use("a")
		use("c") // drops b, which is the oldest
		if got := use("a"); got != 48 {
			t.Errorf("a has %d cached tokens, want 48", got)
		}
		if got := use("b"); got != 0 {
			t.Errorf("b has %d cached tokens, want none", got)
		}
	})
}

func TestFullMemoryPreemptsTheYoungestAndAllFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := bench(t, Config{KVBlocks: 10, MaxNumSeqs: 4, ITL: time.Millisecond, TTFT: time.Millisecond})
		seqs := []*sequence{seq("a", 32, 96), seq("b", 32, 96), seq("c", 32, 96)}
		start := submit(t, m, seqs...)
		for _, s := range seqs {
			finish(s, start)
			if s.made.Load() != 96 {
				t.Errorf("made %d", s.made.Load())
			}
		}
		if _, _, used := m.load(); used != 0 || m.kv.private != 0 || len(m.kv.known) > 10 {
			t.Errorf("memory: used %v, private %d, known %d", used, m.kv.private, len(m.kv.known))
		}
		if m.counts().GeneratedTokens != 3*96 {
			t.Errorf("generated %d", m.counts().GeneratedTokens)
		}
	})
}

func TestCloseEndsEverySequence(t *testing.T) {
	t.Parallel()
	m := bench(t, Config{MaxNumSeqs: 1, TTFT: time.Hour})
	running, waiting := seq("a", 1, 5), seq("b", 1, 5)
	submit(t, m, running, waiting)
	m.close()
	if !running.over.Load() || !waiting.over.Load() {
		t.Error("a sequence outlived its engine")
	}
	if err := m.submit(seq("c", 1, 1)); !errors.Is(err, errStopped) {
		t.Errorf("err = %v", err)
	}
}
