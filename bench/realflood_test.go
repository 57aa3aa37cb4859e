package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// crowdedEngine computes one request after the other, without priorities.
func crowdedEngine(each time.Duration) http.HandlerFunc {
	place := make(chan struct{}, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case place <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		defer func() { <-place }()
		for range 2 {
			<-time.After(each / 2)
			_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

func TestARoundFindsWhatAFloodDoesWithoutBands(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(crowdedEngine(4 * time.Millisecond))
	t.Cleanup(srv.Close)
	b := &bench{client: newClient(), progress: io.Discard}
	to := &target{name: "engine", url: srv.URL}
	d := phases{settle: 50 * time.Millisecond, capacity: 300 * time.Millisecond, top: 500 * time.Millisecond, flood: 200 * time.Millisecond}
	r, err := b.realRound(t.Context(), to, to, floodPool{model: "m", places: 2, prompt: 3, answer: 2}, d, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r.capacity <= 0 || r.capacity > 250 || r.served <= 0 || r.offered == 0 || r.finished != r.offered {
		t.Errorf("capacity %.0f, served %.0f, %d of %d finished", r.capacity, r.served, r.finished, r.offered)
	}
	if len(r.loud) == 0 || len(r.loud) != len(r.alone) {
		t.Errorf("%d requests under the flood, %d alone: they should be the same", len(r.loud), len(r.alone))
	}
	if r.ratio() < 2 {
		t.Errorf("a queue without bands makes the first token late by %.1fx only", r.ratio())
	}
}

func TestOnlyAnswersOfTheWindowCount(t *testing.T) {
	t.Parallel()
	from := time.Unix(1000, 0)
	var all []paced
	for i := range 10 {
		all = append(all, paced{due: from.Add(time.Duration(i) * time.Second), ended: from.Add(time.Duration(i+1) * time.Second)})
	}
	if got := perSecond(all, from.Add(2*time.Second), from.Add(6*time.Second)); got != 1 {
		t.Errorf("%.2f answers a second, want 1", got)
	}
	if got := backlogged(all, 3).Sub(from); got != 8*time.Second {
		t.Errorf("places were full until %s, want 8s", got)
	}
	if got := settled(all, from, 2*time.Second, 5*time.Second); len(got) != 4 {
		t.Errorf("%d requests of the window, want 4", len(got))
	}
}

func TestTheReportOfARealEngineSaysWhatWasNotMet(t *testing.T) {
	t.Parallel()
	f := realFlood{command: "x", pool: computed(), phases: realPhases()}
	for _, served := range []float64{7, 8} {
		f.rounds = append(f.rounds, realRound{
			capacity: 8, served: served, alone: []paced{{first: 100 * time.Millisecond}}, loud: []paced{{first: 200 * time.Millisecond}},
			offered: 5, finished: 5, took: time.Second,
		})
	}
	text := f.text()
	for _, want := range []string{
		"| ≤ 1.5x | 2.00x | **no** |", "| ≥ 90 % | 94 % | yes |", "| all | 10 of 10 | yes |", "maxConcurrency: 8}", "minCeiling: 0.375}",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
