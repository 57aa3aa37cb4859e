package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sync/errgroup"

	"weir/bench/proc"
	"weir/bench/section"
)

// profiled is what one case came to.
type profiled struct {
	load  load
	each  time.Duration      // of the gateway's CPU, per request
	parts map[string]float64 // by stage
}

// runProfile is the command's third life: where the gateway's CPU goes, by
// stage, under three of the loads.
func (o options) runProfile(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if err := runnable(o.weir); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	b := &bench{progress: stderr, dir: dir, client: newClient(), opsToken: rand.Text()}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	b.mockAddr = hostPort(port)
	if _, err := b.startSelf(ctx, "mock", b.mockAddr, []string{"GOMAXPROCS=1"}); err != nil {
		return err
	}
	if err := b.startOwnTenant(ctx, o.weir); err != nil {
		return err
	}
	var all []profiled
	for _, l := range loads(o.scale) {
		if l.aim == 0 || l.shape.paced() {
			continue
		}
		p, err := b.profile(ctx, b.targets[0], l, o)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		all = append(all, p)
	}
	text := stageTable(all, "go run ./bench "+shown(args))
	if _, err := io.WriteString(stdout, text); err != nil || o.out == "" {
		return err
	}
	return section.Place(o.out, "Performance", "stages", text)
}

// profile takes a profile of a target while it has the load.
func (b *bench) profile(ctx context.Context, t *target, l load, o options) (profiled, error) {
	b.say("profiling " + l.name)
	if _, err := b.client.closed(ctx, t, l.shape, l.callers, l.n); err != nil { // connections and heap first
		return profiled{}, err
	}
	before, err := proc.CPU(t.parts)
	if err != nil {
		return profiled{}, err
	}
	var taken *profile.Profile
	g, gctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	g.Go(func() (err error) {
		defer close(done)
		taken, err = b.takeProfile(gctx, t, o)
		return err
	})
	n := 0
	g.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			default:
			}
			if _, err := b.client.closed(gctx, t, l.shape, l.callers, 20*l.callers); err != nil {
				return err
			}
			n += 20 * l.callers
		}
	})
	if err := g.Wait(); err != nil {
		return profiled{}, err
	}
	after, err := proc.CPU(t.parts)
	if err != nil {
		return profiled{}, err
	}
	return profiled{load: l, each: (after[0] - before[0]) / time.Duration(n), parts: attribute(taken)}, nil
}

// takeProfile asks the operators' listener.
func (b *bench) takeProfile(ctx context.Context, t *target, o options) (*profile.Profile, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/ops/v1/pprof/profile?seconds=%.0f", t.ops, max(o.profile.Seconds(), 1)), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+b.opsToken)
	resp, err := b.client.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("profile: %s: %.200s", resp.Status, raw)
	}
	if o.keep != "" {
		name := filepath.Join(o.keep, fmt.Sprintf("cpu-%d.pb.gz", time.Now().UnixMilli()))
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			return nil, err
		}
	}
	return profile.ParseData(raw)
}

// stageTable says what each stage of each load costs. The rows add up.
func stageTable(all []profiled, command string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured with `%s`: microseconds of the gateway's CPU per request, and the part of all.\n\n", command)
	head := []string{"stage"}
	for _, p := range all {
		head = append(head, p.load.name)
	}
	section.Head(&w, head...)
	names := make([]string, 0, len(stages())+1)
	for _, s := range stages() {
		names = append(names, s.name)
	}
	for _, name := range append(names, others) {
		row := []string{name}
		for _, p := range all {
			part := p.parts[name]
			row = append(row, fmt.Sprintf("%.0f, %.0f %%", part*float64(p.each.Microseconds()), 100*part))
		}
		section.Row(&w, row...)
	}
	sum := []string{"**all**"}
	for _, p := range all {
		sum = append(sum, fmt.Sprintf("**%d**", p.each.Microseconds()))
	}
	section.Row(&w, sum...)
	return w.String()
}
