package scheduler

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLatencyQuantilesAreRightToAFifth(t *testing.T) {
	t.Parallel()
	var l latencies
	for ms := 1; ms <= 1000; ms++ {
		l.observe(time.Duration(ms) * time.Millisecond)
	}
	before := l.read()
	for q, exact := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.95: 950 * time.Millisecond, 1: time.Second} {
		if got := before.Quantile(q); got < exact || got > exact*119/100 {
			t.Errorf("quantile %v is %v, want %v or up to a fifth more", q, got, exact)
		}
	}
	if got := before.Sub(before).Quantile(0.95); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	l.observe(0)
	l.observe(-time.Hour)
	l.observe(24 * time.Hour)
	if got := l.read().Sub(before).Quantile(0.5); got != time.Millisecond {
		t.Errorf("out of range: %v, want the lowest bucket", got)
	}
}

func TestDemandTellsWhatWaitsAndHowLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{}, nil)
		defer e.Close()
		done := make(chan Lease)
		for _, tokens := range []int{100, 23} {
			go func() {
				l, err := e.Schedule(t.Context(), Request{InputTokens: tokens, QueuedAt: time.Now().Add(-time.Second)})
				if err != nil {
					t.Error(err)
				}
				done <- l
			}()
		}
		synctest.Wait()
		synctest.Sleep(2 * time.Second)
		if d := e.Demand(); d.Queued != 2 || d.QueuedTokens != 123 || d.Oldest != 3*time.Second || len(d.Endpoints) != 0 {
			t.Errorf("demand %+v", d)
		}
		e.SetEndpoints([]Endpoint{{ID: "a", URL: "http://a"}})
		e.SetHealth("a", Healthy)
		for range 2 {
			l := <-done
			synctest.Sleep(time.Second)
			l.Observe(Progress{Kind: FirstToken})
			l.Observe(Progress{Kind: FirstToken})
			l.End(Outcome{})
		}
		d := e.Demand()
		if d.Queued != 0 || d.QueuedTokens != 0 || len(d.Endpoints) != 1 {
			t.Errorf("demand after all: %+v", d)
		}
		if got := d.FirstTokens.Quantile(1); got < 5*time.Second || got > 6*time.Second {
			t.Errorf("slowest first token %v, want 5 s: the earlier attempts' wait counts", got)
		}
		sum := uint64(0)
		for _, n := range d.FirstTokens {
			sum += n
		}
		if sum != 2 {
			t.Errorf("%d first tokens of 2 requests", sum)
		}
	})
}
