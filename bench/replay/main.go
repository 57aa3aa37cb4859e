// Command replay measures Weir's scheduler in virtual time: it replays traces
// of real requests, and sessions of agents that it generates, against simulated
// engines, under Weir's policies and those that it is compared with.
//
// One cell takes a second or two:
//
//	go run ./bench/replay -trace ../shared/traces/mooncake_conversation_trace.jsonl.gz -endpoints 8 -blocks 4000 -policy ours,round-robin
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	withBubbles(func(b bubbles) {
		if err := realMain(ctx, b, os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "replay:", err)
			os.Exit(1)
		}
		os.Exit(0)
	})
}

const usage = `usage: go run ./bench/replay [flags]

One cell takes a second or two. Those that tell most of a policy: a trace as it
was recorded, in a small cache, and faster than the pool can serve it; and agents.

  T=../shared/traces/mooncake_conversation_trace.jsonl.gz
  go run ./bench/replay -trace $T -endpoints 8 -blocks 4000 -policy ours,llm-d
  go run ./bench/replay -trace $T -endpoints 16 -blocks 500 -policy ours,llm-d
  go run ./bench/replay -trace $T -endpoints 8 -blocks 4000 -speed 8 -policy ours,llm-d
  go run ./bench/replay -agents 64 -policy ours,llm-d

Columns: hits of blocks, what a cache finds that forgets nothing, prompt tokens
computed, and prompt tokens of the busiest engine over the mean: of the whole run,
in windows of 10 s, and what single requests force there.

`

// options are the command's flags.
type options struct {
	trace     string
	policies  string
	endpoints int
	blocks    int
	speed     float64
	requests  int
	agents    int
	seed      uint64
	out       string
	traces    string
	rollouts  bool
	caches    bool
}

func realMain(ctx context.Context, b bubbles, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.trace, "trace", "", "file in Mooncake's format, gzipped or not; without one, generated sessions of agents")
	flags.StringVar(&o.policies, "policy", "all", "policies to compare, with commas between: "+strings.Join(names(policies()), ", ")+"; or shared, one cache as large as all together; or all")
	flags.IntVar(&o.endpoints, "endpoints", 8, "engines")
	flags.IntVar(&o.blocks, "blocks", 4000, "cache blocks of 512 tokens of each engine; 0: no bound")
	flags.Float64Var(&o.speed, "speed", 1, "how much faster than recorded the requests come")
	flags.IntVar(&o.requests, "requests", 0, "only so many of the first requests; 0: all")
	flags.IntVar(&o.agents, "agents", 64, "without a trace: coding agents at once, each with prompts of 142,000 tokens in the mean")
	flags.Uint64Var(&o.seed, "seed", 1, "without a trace: another seed, other sessions")
	flags.StringVar(&o.out, "o", "", "measure everything: the document whose marked section takes the report; its plots go into img/ beside it")
	flags.BoolVar(&o.rollouts, "rollouts", false, "measure rolling upgrades of a split pool alone, and what decisions cost there; -o takes the report")
	flags.BoolVar(&o.caches, "caches", false, "compare an index of what was sent with one of what engines report alone; -o takes the report")
	flags.StringVar(&o.traces, "traces", "../shared/traces", "with -o: folder of traces")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.endpoints < 1 || o.blocks < 0 || o.speed <= 0 {
		return errors.New("-endpoints and -speed must be positive, -blocks not negative")
	}
	if o.rollouts {
		return rollouts(ctx, o.out, "go run ./bench/replay "+strings.Join(args, " "), stdout)
	}
	if o.caches {
		return caches(ctx, b, o, "go run ./bench/replay "+strings.Join(args, " "), stdout)
	}
	if o.out != "" {
		return o.study(ctx, b, "go run ./bench/replay "+strings.Join(args, " "), stdout, stderr)
	}
	return o.compare(ctx, b, stdout)
}

// study measures everything and writes the document.
func (o options) study(ctx context.Context, b bubbles, command string, stdout, stderr io.Writer) error {
	s, err := measureAll(ctx, b, o.traces, stderr)
	if err != nil {
		return err
	}
	text := s.report(command, time.Now())
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	return s.write(o.out, text)
}

func names(all []policy) (out []string) {
	for _, p := range all {
		out = append(out, p.name)
	}
	return out
}

// compare runs one workload under the policies that were asked for.
func (o options) compare(ctx context.Context, b bubbles, stdout io.Writer) error {
	fresh, about, from, to := o.generated()
	if o.trace != "" {
		t, err := readTrace(o.trace)
		if err != nil {
			return err
		}
		if o.requests > 0 {
			t = t[:min(o.requests, len(t))]
		}
		about = fmt.Sprintf("%d requests at %gx speed; in order alone: unlimited %.1f %%, one shared cache %.1f %%, round-robin %.1f %%", len(t), o.speed,
			100*inOrder(t, 1, 0), 100*inOrder(t, 1, o.endpoints*o.blocks), 100*inOrder(t, o.endpoints, o.blocks))
		t = t.faster(o.speed)
		fresh, from, to = func() workload { return t }, 0, 0
	}
	cells, err := o.cells(fresh)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d engines x %d blocks; %s\n", o.endpoints, o.blocks, about)
	fmt.Fprintf(stdout, "%-14s %7s %7s %8s %10s %9s %8s %8s %9s %9s %7s %7s %7s %6s\n", "policy", "hits", "ceiling", "requests", "uncached", "TTFT p50", "p95", "ITL p95", "req/s", "tok/s", "whole", "10 s", "floor", "wall")
	for _, c := range cells {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		began := time.Now()
		r, err := c.run(b)
		if err != nil {
			return err
		}
		ceiling := r.attainable(from)
		if to > 0 {
			r = r.between(from, to)
		}
		f := r.figures()
		fmt.Fprintf(stdout, "%-14s %6.2f%% %6.2f%% %8d %9.0fk %9s %8s %8s %9.2f %9.0f %7.3f %7.2f %7.2f %6s", c.policy.name, 100*f.hits, 100*ceiling, f.requests, float64(f.uncached)/1e3,
			ms(f.ttft), ms(f.tail), ms(f.gap), f.rate, f.tokens, f.whole, f.windowed, f.lumps, time.Since(began).Round(10*time.Millisecond))
		for reason, n := range r.refused {
			fmt.Fprintf(stdout, "  %d %s", n, reason)
		}
		fmt.Fprintln(stdout)
	}
	return nil
}

// generated is the workload without a trace, and when it is in full swing.
func (o options) generated() (fresh func() workload, about string, from, to time.Duration) {
	a := codingAgents(o.agents, o.seed)
	return func() workload { return codingAgents(o.agents, o.seed) }, fmt.Sprintf("%d agents", o.agents), 2 * a.begin, a.cease
}

func ms(d time.Duration) string { return d.Round(time.Millisecond).String() }

// cells are the setups of one comparison.
func (o options) cells(fresh func() workload) ([]setup, error) {
	wanted := strings.Split(o.policies, ",")
	all := append(policies(), policy{name: "shared", build: leastLoaded().build})
	for _, name := range wanted {
		if name != "all" && !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("no policy %q: there are %s", name, strings.Join(names(all), ", "))
		}
	}
	var out []setup
	for _, p := range all {
		if slices.Contains(wanted, "all") || slices.Contains(wanted, p.name) {
			out = append(out, setup{workload: fresh(), engines: fleetOf(o.endpoints, standard(o.blocks)), policy: p, shared: p.name == "shared"})
		}
	}
	return out, nil
}
