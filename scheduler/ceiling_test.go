package scheduler

import (
	"math"
	"testing"
)

func gated(u UsageLimit, priorities ...int) *Embedded {
	cfg := Config{UsageLimit: u}
	for _, p := range priorities {
		cfg.Bands = append(cfg.Bands, BandConfig{Priority: p})
	}
	return New(cfg, nil)
}

func (e *Embedded) ceilings(saturation float64) (all []float64, closed bool) {
	closed = e.setCeilings(saturation)
	for _, b := range e.queues.bands {
		all = append(all, math.Round(b.ceiling*1000)/1000)
	}
	return all, closed
}

func TestCeilingsFollowTheUsageLimitPolicy(t *testing.T) {
	t.Parallel()
	holdback := func(low, high float64, byValue bool) UsageLimit {
		return UsageLimit{Kind: PriorityHoldback, MinCeiling: low, MaxCeiling: high, ByValue: byValue}
	}
	soft := UsageLimit{Kind: SoftReflective}
	tests := []struct {
		name       string
		limit      UsageLimit
		priorities []int
		saturation float64
		want       []float64
	}{
		{"static lets every band fill the pool", UsageLimit{}, []int{10, 0, -10}, 0.7, []float64{1, 1, 1}},
		{"holdback by rank spreads bands evenly", holdback(0.5, 0, false), []int{100, 1, 0}, 0.7, []float64{1, 0.75, 0.5}},
		{"holdback by value spreads them by priority", holdback(0.5, 0, true), []int{100, 50, 0}, 0, []float64{1, 0.75, 0.5}},
		{"holdback by value follows uneven priorities", holdback(0.2, 0.9, true), []int{100, 90, 0}, 0, []float64{0.9, 0.83, 0.2}},
		{"a single band gets the highest ceiling", holdback(0.5, 0.9, false), []int{0}, 0, []float64{0.9}},
		{"a single band gets it by value too", holdback(0.5, 0.9, true), []int{0}, 0, []float64{0.9}},
		{"soft ceilings sink with saturation", soft, []int{2, 1, 0}, 0.4, []float64{1, 0.8, 0.6}},
		{"soft ceilings of an empty pool are open", soft, []int{2, 1, 0}, 0, []float64{1, 1, 1}},
		{"soft ceilings of a full pool are shut but the first", soft, []int{2, 1, 0}, 1, []float64{1, 0, 0}},
		{"soft ceilings of an overfull pool are shut but the first", soft, []int{2, 1, 0}, 3, []float64{1, 0, 0}},
		{"a single soft band is the first", soft, []int{0}, 0.9, []float64{1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, closed := gated(tt.limit, tt.priorities...).ceilings(tt.saturation)
			for i := range tt.want {
				if len(got) != len(tt.want) || got[i] != tt.want[i] {
					t.Fatalf("ceilings %v, want %v", got, tt.want)
				}
			}
			if closed {
				t.Error("a ceiling is said to open by itself, which no pulse does here")
			}
		})
	}
}

// At saturation s a band beyond its soft ceiling gets one cycle in round(s/(1-s)).
func TestSoftCeilingsPulse(t *testing.T) {
	t.Parallel()
	for saturation, period := range map[float64]int{0.7: 2, 0.75: 3, 0.9: 9, 0.99: 99} {
		e := gated(UsageLimit{Kind: SoftReflective}, 1, 0)
		open := 0
		for range 10 * period {
			got, closed := e.ceilings(saturation)
			switch got[1] {
			case 1:
				open++
			case 0:
				if !closed {
					t.Fatalf("saturation %v: shut, and nothing says that it opens again", saturation)
				}
			default:
				t.Fatalf("saturation %v: ceiling %v, want 0 or 1", saturation, got[1])
			}
			if got[0] != 1 {
				t.Fatalf("saturation %v: the first band's ceiling is %v", saturation, got[0])
			}
		}
		if open != 10 {
			t.Errorf("saturation %v: open in %d of %d cycles, want 10", saturation, open, 10*period)
		}
	}
}
