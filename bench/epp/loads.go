package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/scheduler/enginesim"
)

const (
	talks     = 48
	turns     = 8
	talkBlock = 4 << 10 // bytes that a turn adds to the prompt
)

// prefixes lets conversations go on beside each other, each turn of which
// repeats the one before: an engine that had it has its prefix in the cache.
// The caches hold about half of what there is.
func prefixes(ctx context.Context, by way, r *row) error {
	const engines = 4
	whole := talks * turns * talkBlock / 4 / 16 // blocks
	stage, err := build(ctx, engines, 32, enginesim.Config{ZeroLatency: true, KVBlocks: whole / 2 * 3 / engines, ContextLength: 32768})
	if err != nil {
		return err
	}
	defer stage.close()
	s, err := by.begin(ctx, stage)
	if err != nil {
		return err
	}
	defer s.stop()
	var mu sync.Mutex
	var prompt, cached, repeated int64
	all, ctx := errgroup.WithContext(ctx)
	for talk := range talks {
		all.Go(func() error {
			rng := rand.New(rand.NewPCG(1, uint64(talk)))
			text, before := "", int64(0)
			for turn := range turns {
				text += words(rng, talkBlock)
				got, err := stage.serve(ctx, s, ask{
					id: fmt.Sprintf("req_talk_%d_%d.1", talk, turn), tenant: fmt.Sprint("tenant-", talk%10), session: fmt.Sprint("talk-", talk), turn: turn + 1,
					prompt: text, answer: 4,
				})
				if err != nil {
					return err
				}
				mu.Lock()
				prompt, cached, repeated = prompt+got.prompt, cached+got.cached, repeated+before
				mu.Unlock()
				before = got.prompt
				if err := pause(ctx, time.Duration(10+rng.IntN(40))*time.Millisecond); err != nil { // for the reader
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	r.hits, r.possible = float64(cached)/float64(prompt), float64(repeated)/float64(prompt)
	return nil
}

// words is so many bytes of text that nobody else has.
func words(rng *rand.Rand, size int) string {
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "%06x ", rng.IntN(1<<24))
	}
	return b.String()
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The pool of the two loads: two engines of 16 places, 20 ms a token.
const (
	loadEngines = 2
	loadPlaces  = 16
	loadStep    = 20 * time.Millisecond
	loadAnswer  = 32 // tokens
	loadReserve = .2
)

func loadStage(ctx context.Context) (*stage, error) {
	return build(ctx, loadEngines, loadPlaces, enginesim.Config{TTFT: loadStep, ITL: loadStep})
}

// isolation sends 30 % of what the pool can do in the top band, alone, and then
// beside five times of what it can do in a lower one, with and without a
// reserve.
func isolation(ctx context.Context, by way, r *row, last time.Duration) error {
	for _, of := range []struct {
		flood   bool
		reserve float64
		p95     *time.Duration
	}{{false, 0, &r.alone}, {true, 0, &r.flooded}, {true, loadReserve, &r.reserved}} {
		stage, err := loadStage(ctx)
		if err != nil {
			return err
		}
		stage.reserve = of.reserve
		*of.p95, err = topBands(ctx, by, stage, of.flood, last)
		stage.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func topBands(ctx context.Context, by way, stage *stage, flood bool, last time.Duration) (p95 time.Duration, err error) {
	s, err := by.begin(ctx, stage)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	loading, over := context.WithTimeout(ctx, last)
	defer over()
	capacity := float64(loadEngines*loadPlaces) / (float64(loadAnswer) * loadStep.Seconds()) // requests a second
	var mu sync.Mutex
	var first []time.Duration
	var all errgroup.Group
	come := func(name string, band int, rate float64, count bool) {
		all.Go(func() error {
			rng := rand.New(rand.NewPCG(2, uint64(band)))
			for i := 0; pause(loading, time.Duration(rng.ExpFloat64()/rate*float64(time.Second))) == nil; i++ {
				all.Go(func() error {
					got, err := stage.serve(loading, s, ask{id: fmt.Sprintf("req_%s_%d.1", name, i), tenant: name, band: band, prompt: fmt.Sprint("Tell me of river ", i), answer: loadAnswer})
					switch {
					case got.ttft > 0 && count:
						mu.Lock()
						first = append(first, got.ttft)
						mu.Unlock()
					case err != nil && loading.Err() == nil:
						over()
						return err
					}
					return nil
				})
			}
			return nil
		})
	}
	if flood {
		come("low", lowBand, 5*capacity, false)
		if err := pause(loading, last/8); err != nil { // until the pool is full
			return 0, err
		}
	}
	come("top", topBand, .3*capacity, true)
	if err := all.Wait(); err != nil {
		return 0, err
	}
	if len(first) == 0 {
		return 0, errors.New("no request of the top band was answered")
	}
	slices.Sort(first)
	return first[len(first)*95/100], nil
}

const tenants = 10

// fairness has ten tenants want more than the pool can do, some of them short
// answers and some long ones, one of them with twenty times as many requests as the others.
func fairness(ctx context.Context, by way, r *row, last time.Duration) error {
	stage, err := loadStage(ctx)
	if err != nil {
		return err
	}
	defer stage.close()
	s, err := by.begin(ctx, stage)
	if err != nil {
		return err
	}
	defer s.stop()
	loading, over := context.WithTimeout(ctx, last)
	defer over()
	var mu sync.Mutex
	var got [tenants]float64
	var all errgroup.Group
	for tenant := range tenants {
		wants := 8 // at once
		if tenant == 0 {
			wants = 160
		}
		for worker := range wants {
			all.Go(func() error {
				for i := 0; loading.Err() == nil; i++ {
					a := ask{
						id: fmt.Sprintf("req_%d_%d_%d.1", tenant, worker, i), tenant: fmt.Sprint("tenant-", tenant), band: lowBand,
						prompt: fmt.Sprintf("Tenant %d asks for %d", tenant, i), answer: 8 << (tenant % 3),
					}
					served, err := stage.serve(loading, s, a)
					if err != nil && loading.Err() == nil {
						over()
						return err
					}
					mu.Lock()
					got[tenant] += float64(served.answer)
					mu.Unlock()
				}
				return nil
			})
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	r.jain, r.least = evenness(got[:])
	return nil
}

// evenness is Jain's index, which is 1 when all have as much, and what the last
// has of an even share.
func evenness(got []float64) (jain, least float64) {
	sum, squares := 0.0, 0.0
	for _, x := range got {
		sum, squares = sum+x, squares+x*x
	}
	if sum == 0 {
		return 0, 0
	}
	n := float64(len(got))
	return sum * sum / (n * squares), slices.Min(got) / (sum / n)
}
