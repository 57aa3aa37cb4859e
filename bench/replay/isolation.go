package main

import (
	"time"

	"weir/scheduler"
)

// limited is a fleet whose engines take so many requests at once.
func limited(n, slots int, m model) []server {
	all := fleetOf(n, m)
	for i := range all {
		all[i].endpoint.MaxConcurrency = slots
	}
	return all
}

// flood is the scenario of a lower band that floods the pool.
type flood struct {
	engines, slots int
	top, low       stream
	cfg            scheduler.Config
	capacity       float64 // of requests of the low band, a second
}

// flooded is what the top band felt of it.
type flooded struct {
	ttftAlone, ttft time.Duration // p95
	itlAlone, itl   time.Duration // p95
	busy            float64       // part of the pool's places that were taken
	offered         int           // of the low band
	finished        int
	last            time.Duration // when the last one of the low band ended
	refused         map[scheduler.Reason]int
}

const (
	topClass = "top"
	lowClass = "low"
)

// floodOf has a pool of eight engines with 24 places each: as many as slow a
// decoding step by a tenth. The top band takes 30 % of it; for a minute the low
// band sends five times what the pool can do.
func floodOf(b bubbles, cfg scheduler.Config) (flood, error) {
	f := flood{engines: 8, slots: 16, cfg: cfg}
	shape := stream{class: lowClass, tenant: "batch", band: 0, weight: 1, input: 512, output: 512, seed: 7, to: 30 * time.Second, rate: 300}
	r, err := f.run(b, shape)
	if err != nil {
		return f, err
	}
	r = r.endedBetween(10*time.Second, 30*time.Second)
	f.capacity, _ = r.throughput()
	f.low = shape
	f.low.rate, f.low.to = 5*f.capacity, time.Minute
	f.top = stream{class: topClass, tenant: "chat", band: 10, weight: 1, input: 512, output: 256, seed: 8, to: 8 * time.Minute, rate: .3 * f.capacity}
	return f, nil
}

func (f flood) run(b bubbles, w ...workload) (result, error) {
	return setup{
		workload: mix(w), engines: limited(f.engines, f.slots, standard(4000)), policy: embedded("ours", f.cfg, 0),
	}.run(b)
}

// measure runs the top band alone, and then with the flood.
func (f flood) measure(b bubbles) (flooded, error) {
	alone, err := f.run(b, f.top)
	if err != nil {
		return flooded{}, err
	}
	both, err := f.run(b, f.top, f.low)
	if err != nil {
		return flooded{}, err
	}
	out := flooded{offered: len(f.low.first()), refused: both.refused}
	var lastWaited time.Duration
	for _, x := range both.records {
		if x.class == lowClass {
			out.finished++
			out.last = max(out.last, x.over)
			lastWaited = max(lastWaited, x.granted)
		}
	}
	const settled = 10 * time.Second
	out.busy = both.taken(settled, lastWaited) / float64(f.engines*f.slots)
	quiet, loud := alone.between(settled, lastWaited), both.between(settled, lastWaited)
	out.ttftAlone, out.ttft = quiet.ttft(topClass, .95), loud.ttft(topClass, .95)
	out.itlAlone, out.itl = alone.itl(topClass, .95), both.itl(topClass, .95)
	return out, nil
}
