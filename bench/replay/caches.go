package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"weir/bench/section"
	"weir/scheduler"
)

// following is Weir's own policy with an index of one kind in each of the
// gateway's replicas.
type following struct {
	name     string
	precise  bool // the engines report what they have
	replicas int  // of the gateway, each with its own index
	secret   bool // engines don't say how large their caches are
}

func followings() []following {
	return []following{
		{"what was sent", false, 1, false},
		{"what engines report", true, 1, false},
		{"sent, sizes unknown", false, 1, true},
		{"reported, sizes unknown", true, 1, true},
		{"sent, 4 gateways", false, 4, false},
		{"reported, 4 gateways", true, 4, false},
	}
}

// blockOf is the tokens of a block of a workload.
func blockOf(id uint64) []uint64 {
	tokens := make([]uint64, blockTokens)
	for i := range tokens {
		tokens[i] = id + 1
	}
	return tokens
}

// how is how the engines' reports are followed.
func how() scheduler.PreciseCache {
	return scheduler.PreciseCache{Enabled: true, BlockTokens: blockTokens, Speculative: 2 * time.Second}
}

func (f following) policy() policy {
	cfg := ours().build // Weir's own, built once for each replica
	p := policy{name: f.name, prompts: true, loads: true, secret: f.secret}
	if f.precise {
		cfg = embedded("", scheduler.Config{
			MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, TTL: -1,
			Profile: scheduler.Profile{Precise: how()},
		}, 0).build
		p.tokens = func(r *request) *scheduler.TokenChain {
			var tokens []uint64
			for _, id := range r.blocks {
				tokens = append(tokens, blockOf(id)...)
			}
			return how().Chain(tokens, "")
		}
	}
	p.build = func(m *sim) (scheduler.Scheduler, func()) {
		all := &replicas{}
		for range f.replicas {
			s, closing := cfg(m)
			one := s.(*scheduler.Embedded)
			all.all, all.closing = append(all.all, one), append(all.closing, closing)
			if f.secret {
				one.SetEndpoints(withoutSizes(m))
				for _, v := range m.setup.engines {
					one.SetHealth(v.endpoint.ID, scheduler.Healthy)
				}
			}
		}
		if f.precise {
			all.listen(m)
		}
		return all, all.close
	}
	return p
}

func withoutSizes(m *sim) (all []scheduler.Endpoint) {
	for _, v := range m.setup.engines {
		p := v.endpoint
		p.URL = "http://" + p.ID
		all = append(all, p)
	}
	return all
}

// replicas are gateways that know nothing of each other, and take turns.
type replicas struct {
	all     []*scheduler.Embedded
	closing []func()
	next    int
	names   map[uint64]uint64 // of blocks, by their ids in the workload
}

func (s *replicas) close() {
	for _, end := range s.closing {
		end()
	}
}

// Schedule asks the next one. Requests come one after the other.
func (s *replicas) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	at := s.next
	s.next = (at + 1) % len(s.all)
	return s.all[at].Schedule(ctx, r)
}

// SetLoad tells all of them.
func (s *replicas) SetLoad(id string, l scheduler.Load) {
	for _, one := range s.all {
		one.SetLoad(id, l)
	}
}

// listen has the engines tell all of them what comes into their caches and what
// is evicted.
func (s *replicas) listen(m *sim) {
	s.names = map[uint64]uint64{}
	for i, e := range m.engines {
		id := m.setup.engines[i].endpoint.ID
		report := func(empty bool, all ...scheduler.CacheChange) {
			for _, one := range s.all {
				one.CacheChanged(id, scheduler.CacheReport{Model: "m", BlockTokens: blockTokens, Clear: empty, Changes: all})
			}
		}
		report(true)
		e.came = func(ids []uint64, i int) {
			var parent uint64
			if i > 0 {
				parent = s.names[ids[i-1]]
			}
			name := scheduler.BlockHash(parent, blockOf(ids[i]), 0)
			s.names[ids[i]] = name
			report(false, scheduler.CacheChange{Block: name, Parent: parent})
		}
		e.kv.gone = func(id uint64) { report(false, scheduler.CacheChange{Block: s.names[id], Gone: true}) }
	}
}

// indexBytes is what a block of one endpoint takes in an index.
func indexBytes() (sent, reported float64) {
	const blocks = 100_000
	heap := func() float64 {
		runtime.GC()
		runtime.GC() // what pools held is gone only now
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	measure := func(fill func(s *scheduler.Embedded)) float64 {
		before := heap()
		s := scheduler.New(scheduler.Config{Profile: scheduler.Profile{Precise: how()}}, nil)
		s.SetEndpoints([]scheduler.Endpoint{{ID: "a", CacheBlocks: blocks}})
		s.SetHealth("a", scheduler.Healthy)
		fill(s)
		grown := (heap() - before) / blocks
		s.Close()
		return grown
	}
	sent = measure(func(s *scheduler.Embedded) {
		const each = 100 // blocks of a prompt
		for n := range uint64(blocks / each) {
			r := &request{}
			for i := range uint64(each) {
				r.blocks = append(r.blocks, n*each+i)
			}
			l, err := s.Schedule(context.Background(), scheduler.Request{ID: "1", Prompt: [][]byte{promptOf(r)}})
			if err == nil {
				l.End(scheduler.Outcome{Result: scheduler.Completed})
			}
		}
	})
	reported = measure(func(s *scheduler.Embedded) {
		for n := range uint64(blocks) {
			c := scheduler.CacheChange{Block: n + 1}
			if n%100 > 0 {
				c.Parent = n
			}
			s.CacheChanged("a", scheduler.CacheReport{BlockTokens: blockTokens, Clear: n == 0, Changes: []scheduler.CacheChange{c}})
		}
	})
	return sent, reported
}

// caches measures the two kinds of index beside each other, and writes the
// section.
func caches(ctx context.Context, b bubbles, o options, command string, progress io.Writer) error {
	began := time.Now()
	sent, reported := indexBytes() // before anything else is in memory
	var w strings.Builder
	found, err := tracesIn(o.traces)
	if err != nil {
		return err
	}
	at := []size{{8, 500}, {8, 1000}}
	for _, file := range found {
		_, _ = fmt.Fprintln(progress, "replay: caches under", file)
		t, err := readTrace(file)
		if err != nil {
			return err
		}
		if o.requests > 0 {
			t = t[:min(o.requests, len(t))]
		}
		if err := cachesUnder(ctx, b, &w, traceName(file), t, at); err != nil {
			return err
		}
	}
	fmt.Fprintf(&w, "Memory of the gateway for each block of an endpoint: %.0f bytes for what was sent, %.0f for what is reported, besides what the follower keeps of the engine's own names.\n", sent, reported)
	text := fmt.Sprintf("### Caches that engines report\n\nMeasured %s on %s with `%s` in %s.\n\n%s", began.UTC().Format("2006-01-02"), section.Machine(), command, time.Since(began).Round(time.Second), w.String())
	if o.out == "" {
		_, err = io.WriteString(progress, text)
		return err
	}
	return section.Place(o.out, "Scheduling", "caches", text)
}

func cachesUnder(ctx context.Context, b bubbles, w *strings.Builder, name string, t trace, sizes []size) error {
	fmt.Fprintf(w, "**%s**, %d requests: prefix hits; TTFT p95 in seconds.\n\n", name, len(t))
	type cell struct {
		size size
		f    following
	}
	var cells []cell
	for _, f := range followings() {
		for _, s := range sizes {
			cells = append(cells, cell{s, f})
		}
	}
	done, err := each(ctx, cells, func(c cell) (figures, error) {
		r, err := setup{workload: t, engines: fleetOf(c.size.endpoints, standard(c.size.blocks)), policy: c.f.policy()}.run(b)
		if err != nil {
			return figures{}, err
		}
		return r.figures(), nil
	})
	if err != nil {
		return err
	}
	head := []string{"index"}
	for _, s := range sizes {
		head = append(head, s.String())
	}
	section.Head(w, head...)
	for i, f := range followings() {
		row := []string{f.name}
		for j := range sizes {
			one := done[i*len(sizes)+j]
			row = append(row, fmt.Sprintf("%s; %.2f", percent(one.hits), one.tail.Seconds()))
		}
		section.Row(w, row...)
	}
	one := make([]string, 0, len(sizes)+1)
	one = append(one, "one cache of the same size")
	for _, s := range sizes {
		one = append(one, percent(inOrder(t, 1, s.endpoints*s.blocks)))
	}
	section.Row(w, one...)
	w.WriteString("\n")
	return nil
}
