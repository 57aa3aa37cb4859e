package main

import "testing"

func TestAScreenerMixesNoRevisions(t *testing.T) {
	t.Parallel()
	for name, profile := range rolls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := roll(t.Context(), name, profile)
			if err != nil {
				t.Fatal(err)
			}
			if r.pairs < rollSteps*len(upgrade())*9/10 || r.refused > 0 {
				t.Fatalf("%d pairs, %d refused", r.pairs, r.refused)
			}
			part := float64(r.crossed) / float64(r.pairs)
			if name == "no screener" {
				if part < 0.1 {
					t.Errorf("%.1f %% of the pairs are of two revisions: nothing is to be screened", 100*part)
				}
				return
			}
			if r.crossed != 0 {
				t.Errorf("%d pairs of two revisions", r.crossed)
			}
			if moved := float64(r.moved) / float64(r.turns); moved > 1.3*r.least+0.005 {
				t.Errorf("%.3f of the turns met another revision, %.3f have to", moved, r.least)
			}
		})
	}
}
