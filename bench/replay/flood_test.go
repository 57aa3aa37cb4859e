package main

import (
	"testing"
)

func TestATopBandFeelsLittleOfAFlood(t *testing.T) {
	t.Parallel()
	f, err := floodOf(bubbles{t}, holdback())
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.measure(bubbles{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("capacity %.1f/s, %+v", f.capacity, got)
	if r := ratio(got.ttft, got.ttftAlone); r > 1.2 {
		t.Errorf("TTFT p95 is %v, alone %v: %.2fx", got.ttft, got.ttftAlone, r)
	}
	if r := ratio(got.itl, got.itlAlone); r > 1.1 {
		t.Errorf("ITL p95 is %v, alone %v: %.2fx", got.itl, got.itlAlone, r)
	}
	if got.busy < .9 {
		t.Errorf("the pool was %.0f %% busy", 100*got.busy)
	}
	if got.finished != got.offered {
		t.Errorf("%d of the low band's %d requests finished", got.finished, got.offered)
	}
}
