package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir/scheduler"
)

// study is everything that the document shows.
type study struct {
	traces []*matrix
	agents []*sweep
	floods []held
	worst  float64 // farthest of ten tenants from its share in ten seconds
	mean   float64
	burst  map[string]result
	costs  []cost
	took   time.Duration // of what runs in virtual time
}

// held is the flood under one configuration.
type held struct {
	name string
	flooded
}

// measureAll runs everything. Folders without traces leave the traces out.
func measureAll(ctx context.Context, b bubbles, folder string, progress io.Writer) (*study, error) {
	s := &study{burst: map[string]result{}}
	say := func(text string) { _, _ = fmt.Fprintln(progress, "replay:", text) }
	began := time.Now()
	paths, err := tracesIn(folder)
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		say("no traces in " + folder + ": left out")
	}
	for _, path := range paths {
		name := traceName(path)
		say("replaying " + name)
		t, err := readTrace(path)
		if err != nil {
			return nil, err
		}
		m, err := measureTrace(ctx, b, name, t)
		if err != nil {
			return nil, err
		}
		s.traces = append(s.traces, m)
	}
	say("agents")
	for _, at := range []struct {
		size   size
		agents []int
	}{{size{8, 4000}, []int{8, 16, 32, 48, 56, 64, 80, 96, 112, 128}}, {size{8, 1500}, []int{8, 16, 24, 32, 40, 48, 64}}} {
		v, err := measureAgents(ctx, b, at.size, at.agents, []policy{roundRobin(), greedy(), llmd(), ours()})
		if err != nil {
			return nil, err
		}
		s.agents = append(s.agents, v)
	}
	say("isolation")
	if err := s.measureIsolation(b); err != nil {
		return nil, err
	}
	s.took = time.Since(began)
	say("cost of decisions, on a real clock")
	if err := flag.Set("test.benchtime", "300ms"); err != nil {
		return nil, err
	}
	s.costs, err = measureCost(ctx)
	return s, err
}

func tracesIn(folder string) ([]string, error) {
	return filepath.Glob(filepath.Join(folder, "*.jsonl*"))
}

func traceName(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".jsonl")
}

// holdback leaves a fifteenth of the pool to the highest band.
func holdback() scheduler.Config {
	return scheduler.Config{
		MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, TTL: -1,
		UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: .93},
	}
}

func (s *study) measureIsolation(b bubbles) error {
	none := holdback()
	none.UsageLimit = scheduler.UsageLimit{}
	for _, c := range []struct {
		name string
		cfg  scheduler.Config
	}{{"priority-holdback-policy, minCeiling 0.93", holdback()}, {"no usage limit", none}} {
		f, err := floodOf(b, c.cfg)
		if err != nil {
			return err
		}
		got, err := f.measure(b)
		if err != nil {
			return err
		}
		s.floods = append(s.floods, held{c.name, got})
	}
	var err error
	if s.worst, s.mean, err = tenants().measure(b); err != nil {
		return err
	}
	for _, p := range []policy{roundRobin(), llmd(), oursForBursts()} {
		if s.burst[p.name], err = bursting(b, p); err != nil {
			return err
		}
	}
	return nil
}

// write puts the report into the document and the plots into a folder beside
// it.
func (s *study) write(path, text string) error {
	img := filepath.Join(filepath.Dir(path), "img")
	if err := os.MkdirAll(img, 0o755); err != nil {
		return err
	}
	for name, c := range s.charts() {
		if err := os.WriteFile(filepath.Join(img, name), []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	return place(path, text)
}
