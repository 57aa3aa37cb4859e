package main

import (
	"math"
	"strconv"
	"time"

	"weir/scheduler"
)

// shares is the scenario of ten tenants with weights from one to ten, all of
// whom want more than their share. Two of them try harder: one sends fifty
// times as many requests, and one has prompts twenty times as long.
type shares struct {
	streams []stream
	from    int // the first window that counts
	windows int
}

const (
	manyRequests = 3  // the weight of the tenant with so many requests
	longPrompts  = 10 // and of the one with long prompts
)

func tenants() shares {
	s := shares{from: 1, windows: 4}
	const wanted = 25.0 // requests a second of each tenant for each of its weight: over its share
	for weight := 1; weight <= 10; weight++ {
		v := stream{
			class: "all", tenant: tenantOf(weight), weight: weight, rate: wanted * float64(weight),
			to: time.Duration(s.windows) * window, input: 200, output: 50, seed: uint64(100 + weight),
		}
		switch weight {
		case manyRequests:
			v.rate *= 50
		case longPrompts:
			v.input *= 20
		}
		s.streams = append(s.streams, v)
	}
	return s
}

func tenantOf(weight int) string { return "weight-" + strconv.Itoa(weight) }

// worst runs the scenario and returns how far the tenant was from its share, in
// the window in which any was farthest, as a part of the share; and how far all
// were in the mean.
func (s shares) measure(b bubbles) (worst, mean float64, err error) {
	var all mix
	for _, v := range s.streams {
		all = append(all, v)
	}
	cfg := scheduler.Config{MaxQueued: unlimited, MaxBandQueued: unlimited, TTL: -1}
	r, err := setup{workload: all, engines: fleetOf(16, standard(4000)), policy: embedded("ours", cfg, 0), until: time.Duration(s.windows) * window}.run(b)
	if err != nil {
		return 0, 0, err
	}
	n := 0
	for w := s.from; w < s.windows; w++ {
		total, weights := 0, 0
		for _, v := range s.streams {
			total += at(r.service[v.tenant], w)
			weights += v.weight
		}
		for _, v := range s.streams {
			share := float64(total) * float64(v.weight) / float64(weights)
			off := math.Abs(float64(at(r.service[v.tenant], w))-share) / share
			worst = max(worst, off)
			mean += off
			n++
		}
	}
	return worst, mean / float64(n), nil
}

func at(all []int, i int) int {
	if i < len(all) {
		return all[i]
	}
	return 0
}
