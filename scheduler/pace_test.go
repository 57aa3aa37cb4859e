package scheduler

import (
	"math"
	"testing"
	"time"
)

func TestPaceFollowsWhatIsClearlyDifferent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		prior float64
		shows float64 // each time
		times int
		idle  time.Duration // after that
		want  float64
	}{
		{"nothing shown", 1, 0, 0, 0, 1},
		{"what chance may do is not believed", 1, 1.8, 1000, 0, 1},
		{"ten times as slow", 1, 10, 1000, 0, 10},
		{"ten times as fast", 1, 0.1, 1000, 0, 0.1},
		{"one bad answer is not believed", 1, 60, 1, 0, 1},
		{"as slow as the operator says", 4, 4, 1000, 0, 4},
		{"faster than the operator says", 4, 1, 1000, 0, 1},
		{"a bad time is forgotten", 1, 10, 1000, 10 * time.Minute, 1},
		{"what can't be true is bounded", 1, 1e9, 100_000, 0, maxSlow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1_000_000, 0)
			p := pace{prior: tt.prior}
			p.fade(now)
			for range tt.times {
				now = now.Add(10 * time.Millisecond)
				p.observe(tt.shows, 1, now)
			}
			p.fade(now.Add(tt.idle))
			if math.Abs(p.slow/tt.want-1) > 0.05 {
				t.Errorf("pace is %.2f, want %.2f", p.slow, tt.want)
			}
		})
	}
}

// What a request costs beside its tokens must not make an endpoint look fast
// that got long prompts, or slow that got short ones.
func TestSpeedKnowsWhatARequestCostsBesideItsTokens(t *testing.T) {
	t.Parallel()
	took := func(tokens int) float64 { return 0.05 + float64(tokens)/10_000 }
	var s speed
	for i := range 1000 {
		tokens := []int{10, 100, 1000, 20_000}[i%4]
		s.observe(tokens, took(tokens))
	}
	for _, tokens := range []int{1, 10, 500, 20_000} {
		if slow, _ := s.observe(tokens, took(tokens)); math.Abs(slow-1) > 0.05 {
			t.Errorf("%d tokens took %.2f of what was expected, want 1", tokens, slow)
		}
	}
	if slow, _ := s.observe(1000, 10*took(1000)); math.Abs(slow-10) > 1.5 {
		t.Errorf("ten times as long is taken for %.2f times", slow)
	}
	var same speed
	for range 100 {
		same.observe(1000, 0.2)
	}
	if slow, _ := same.observe(1000, 0.4); slow < 1.8 || slow > 2.1 {
		t.Errorf("twice as long, where all prompts have one length, is taken for %.2f times", slow)
	}
}
