package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/bench/section"
)

// The flood against an engine that really computes: llama.cpp's server with a
// small language model, on this machine's cores. What it can do moves with all
// else that the machine does, so each round measures its capacity, the top band
// alone and the top band above the flood, one right after the other.
const (
	realRounds  = 4
	realInstall = "deploy/realmodel/install.sh"
)

// phases is how long each part of a round lasts.
type phases struct {
	settle   time.Duration // at the beginning of each, which doesn't count
	capacity time.Duration
	top      time.Duration // the top band alone, and again above the flood
	flood    time.Duration // of the latter: five times the capacity comes
}

// realPhases bring four rounds to four minutes. In a flood of 3.5 s comes more
// than the low band is served in the 22 s of the top one's requests.
func realPhases() phases {
	return phases{settle: 3 * time.Second, capacity: 10 * time.Second, top: 22 * time.Second, flood: 3500 * time.Millisecond}
}

// computed is the engine and its pool. The engine knows no priorities: whatever
// it was given it computes together, so what the low band may have there at once
// is what stands beside a first token of the top one. Three of eight places keep
// the cores busy: more at once make the engine hardly faster, and each request
// slower. The others are for the top band.
func computed() floodPool {
	return floodPool{engine: "llamacpp", model: "real-chat", places: 8, ceiling: .375, prompt: 12, answer: 16}
}

// realRound is one round's figures, and realFlood all rounds'.
type realRound struct {
	capacity, served float64 // answers a second: the engine full, and under the flood
	alone, loud      []paced
	offered          int
	finished         int
	took             time.Duration
}

type realFlood struct {
	command string
	when    time.Time
	pool    floodPool
	phases  phases
	rounds  []realRound
}

// runReal is the command's life with -isolation-real.
func (o options) runReal(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if err := runnable(o.weir); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	b := &bench{progress: stderr, dir: dir, client: newClient()}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	server, weights, err := installedModel(ctx, o.real)
	if err != nil {
		b.say("left out: " + err.Error() + "; make test-real installs it")
		return nil
	}
	f := realFlood{command: "go run ./bench " + shown(args), when: time.Now(), pool: computed(), phases: realPhases()}
	top, low, err := b.startReal(ctx, o.weir, server, weights, f.pool)
	if err != nil {
		return err
	}
	for i := range realRounds {
		b.say(fmt.Sprintf("a flood below a band at a real engine, round %d of %d", i+1, realRounds))
		r, err := b.realRound(ctx, top, low, f.pool, f.phases, uint64(i))
		if err != nil {
			return err
		}
		f.rounds = append(f.rounds, r)
	}
	text := f.text()
	if _, err := io.WriteString(stdout, text); err != nil || o.out == "" {
		return err
	}
	return section.Place(o.out, "Scheduling", "isolation", text)
}

// installedModel asks for a server and its weights that were installed before:
// installing them would take minutes.
func installedModel(ctx context.Context, folder string) (server, weights string, err error) {
	cmd := exec.CommandContext(ctx, "bash", realInstall, folder)
	cmd.Env = append(os.Environ(), "WEIR_REALMODEL_SOURCE=installed")
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("no real model in %s", folder)
	}
	for line := range strings.Lines(string(out)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "server":
			server = value
		case "model":
			weights = value
		}
	}
	if server == "" || weights == "" {
		return "", "", fmt.Errorf("%s named no server and model", realInstall)
	}
	return server, weights, nil
}

// startReal starts the engine (docs/real-model.md explains its options) and a
// gateway before it, with a tenant in each band.
func (b *bench) startReal(ctx context.Context, program, server, weights string, pool floodPool) (top, low *target, err error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, nil, err
	}
	engine, err := startChild(b.dir, "llama-server", nil, server,
		"--model", weights, "--alias", pool.model, "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--ctx-size", "8192", "--kv-unified", "--parallel", strconv.Itoa(pool.places), "--threads", "2", "--poll", "0",
		"--metrics", "--offline", "--no-ui")
	if err != nil {
		return nil, nil, err
	}
	b.children = append(b.children, engine)
	url := "http://" + hostPort(port)
	if err := engine.ready(ctx, answers(url+"/health")); err != nil {
		return nil, nil, err
	}
	in, err := b.install(ctx, program, pool.catalogue(url))
	if err != nil {
		return nil, nil, err
	}
	return b.floodTenants(ctx, in)
}

// realRound measures the capacity, then the top band's requests alone, then the
// very same ones while the low band has requests waiting.
func (b *bench) realRound(ctx context.Context, top, low *target, pool floodPool, d phases, seed uint64) (r realRound, err error) {
	if r.capacity, err = b.capacity(ctx, top, pool, d, seed); err != nil {
		return r, err
	}
	rate, alone := .3*r.capacity, time.Now()
	if r.alone, _, err = b.client.offer(ctx, top, pool, rate, d.top, 100+seed); err != nil {
		return r, err
	}
	var all []paced // the low band's
	g, gctx := errgroup.WithContext(ctx)
	loud := time.Now()
	g.Go(func() (err error) {
		all, r.offered, err = b.client.offer(gctx, low, pool, 5*r.capacity, d.flood, 200+seed)
		r.finished, r.took = len(all), time.Since(loud)
		return err
	})
	g.Go(func() (err error) {
		r.loud, _, err = b.client.offer(gctx, top, pool, rate, d.top, 100+seed)
		return err
	})
	if err = g.Wait(); err != nil {
		return r, err
	}
	lasts := min(backlogged(all, pool.places).Sub(loud), d.top)
	if lasts < 2*d.settle {
		return r, fmt.Errorf("the low band had requests waiting for %s only: the engine is faster than its capacity was", lasts)
	}
	r.served = perSecond(append(all, r.loud...), loud.Add(d.settle), loud.Add(lasts))
	r.alone, r.loud = settled(r.alone, alone, d.settle, lasts), settled(r.loud, loud, d.settle, lasts)
	return r, nil
}

// backlogged is until when more of the band than the engine has places for had
// no answer.
func backlogged(all []paced, places int) time.Time {
	ends := make([]time.Time, 0, len(all))
	for _, p := range all {
		ends = append(ends, p.ended)
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends[max(len(ends)-places, 0)]
}

// capacity is how many answers a second come when the engine is always full.
func (b *bench) capacity(ctx context.Context, t *target, pool floodPool, d phases, seed uint64) (float64, error) {
	began := time.Now()
	all := make([][]paced, pool.places)
	g, ctx := errgroup.WithContext(ctx)
	for i := range all {
		g.Go(func() error {
			for n := uint64(0); time.Since(began) < d.capacity; n++ {
				one, err := b.client.floodOnce(ctx, t, pool, time.Now(), (300+seed)<<20+uint64(i)<<10+n)
				if err != nil {
					return err
				}
				all[i] = append(all[i], one)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	rate := 0.0
	for _, some := range all {
		rate += perSecond(some, began.Add(d.settle), began.Add(d.capacity))
	}
	if rate == 0 {
		return 0, errors.New("the engine was too slow to measure its capacity")
	}
	return rate, nil
}

// perSecond is how many of the answers ended between two moments, a second.
func perSecond(all []paced, from, to time.Time) float64 {
	n := 0
	for _, p := range all {
		if p.ended.After(from) && !p.ended.After(to) {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}
