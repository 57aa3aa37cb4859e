package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// stream is an open loop: requests that come at random, at a steady mean rate,
// whatever becomes of them.
type stream struct {
	class, tenant string
	band, weight  int
	rate          float64 // a second
	from, to      time.Duration
	input, output int // tokens in the mean; each request has from half of it to half more
	common        int // tokens with which all prompts of the tenant begin
	seed          uint64
}

func (s stream) first() []*request {
	rnd := rand.New(rand.NewPCG(s.seed, 2))
	about := func(mean int) int { return max(mean/2+rnd.IntN(mean+1), 1) }
	var out []*request
	for at := s.from; ; {
		at += time.Duration(rnd.ExpFloat64() / s.rate * float64(time.Second))
		if at >= s.to {
			return numbered(out)
		}
		r := &request{
			at: at, input: s.common + about(s.input), output: about(s.output),
			class: s.class, tenant: s.tenant, band: s.band, weight: s.weight,
		}
		for i := range (r.input + blockTokens - 1) / blockTokens {
			id := s.seed<<48 | uint64(len(out)+1)<<16 | uint64(i)
			if (i+1)*blockTokens <= s.common {
				id = s.seed<<48 | uint64(i)
			}
			r.blocks = append(r.blocks, id)
		}
		out = append(out, r)
	}
}

func (s stream) ended(*request, time.Duration) *request { return nil }

// mix is several workloads at once.
type mix []workload

func (m mix) first() []*request {
	var all []*request
	for _, w := range m {
		all = append(all, w.first()...)
	}
	return numbered(slices.Clip(all))
}

func (m mix) ended(r *request, at time.Duration) *request {
	for _, w := range m {
		if next := w.ended(r, at); next != nil {
			return next
		}
	}
	return nil
}
