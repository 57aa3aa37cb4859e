package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"weir/bench/section"
)

// runAgents is the command's other life: agents through one gateway, then the
// flood through another.
func (o options) runAgents(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if err := runnable(o.weir); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	b := &bench{progress: stderr, dir: dir, client: newClient()}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	r := agentReport{command: "go run ./bench " + shown(args), when: time.Now()}
	if err := b.crowds(ctx, o, &r); err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	if err := b.floods(ctx, o, &r); err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	text := r.text()
	if _, err := io.WriteString(stdout, text); err != nil || o.out == "" {
		return err
	}
	return section.Place(o.out, "Scheduling", "agents", text)
}

// crowds runs the agents straight at the engines, each at one of its own, and
// then through a gateway.
func (b *bench) crowds(ctx context.Context, o options, r *agentReport) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	b.mockAddr = hostPort(port)
	if _, err := b.startSelf(ctx, "engines", b.mockAddr, []string{"GOMAXPROCS=1"}); err != nil {
		return err
	}
	c := crowd{agents: o.agents, turns: min(o.turns, 4), client: b.client, spread: agentCycle * time.Second, tool: agentTool()}
	c.target = func(agent int) *target {
		return &target{name: directName, url: fmt.Sprintf("http://%s/e/%d", b.mockAddr, agent%agentEngines)}
	}
	b.say(fmt.Sprintf("%d agents straight at the engines, %d turns each", c.agents, c.turns))
	if r.direct, err = b.agentsThrough(ctx, c, nil); err != nil {
		return err
	}
	in, err := b.install(ctx, o.weir, agentCatalogue(b.mockAddr))
	if err != nil {
		return err
	}
	r.pgPID = in.pgPID
	if _, in.key, err = in.tenant(ctx, "Agents", "agents"); err != nil {
		return err
	}
	if err := b.serve(ctx, in, "weir", nil); err != nil {
		return err
	}
	through := b.targets[0]
	c.turns, c.target = o.turns, func(int) *target { return through }
	b.say(fmt.Sprintf("%d agents through weir, %d turns each: about %s", c.agents, c.turns, (time.Duration(c.turns+1) * agentCycle * time.Second).Round(time.Second)))
	if r.through, err = b.agentsThrough(ctx, c, through); err != nil {
		return err
	}
	receipts, err := in.receipts(ctx)
	r.receipts = receipts.completed
	b.children[len(b.children)-1].stop() // so that it takes nothing from what comes next
	return err
}

// agentTool is the mean run of a tool: what is left of the cycle.
func agentTool() time.Duration {
	return agentCycle*time.Second - agentWait - (agentChunks-1)*agentGap
}

// floods puts a real simulated engine behind a gateway of its own.
func (b *bench) floods(ctx context.Context, o options, r *agentReport) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	addr := hostPort(port)
	engine, err := startChild(b.dir, "sim", nil, o.weir, "sim", "--listen", addr, "--model", "sim",
		"--itl", floodStep.String(), "--max-num-seqs", "64", "--kv-blocks", "65536")
	if err != nil {
		return err
	}
	b.children = append(b.children, engine)
	if err := engine.ready(ctx, answers("http://"+addr+"/health")); err != nil {
		return err
	}
	in, err := b.installIn(ctx, o.weir, "flood", r.pgPID, simulated().catalogue("http://"+addr))
	if err != nil {
		return err
	}
	top, low, err := b.floodTenants(ctx, in)
	if err != nil {
		return err
	}
	b.say("a flood below a band, on a real clock")
	r.flood, err = b.flood(ctx, top, low, "http://"+addr)
	return err
}

// floodTenants starts a gateway that has a tenant in each of the two bands.
func (b *bench) floodTenants(ctx context.Context, in *installation) (top, low *target, err error) {
	keys := map[string]string{}
	for _, plan := range []string{"top", "low"} {
		if _, keys[plan], err = in.tenant(ctx, plan, plan); err != nil {
			return nil, nil, err
		}
	}
	t, err := b.launch(ctx, in, "weir", nil)
	if err != nil {
		return nil, nil, err
	}
	upper, lower := *t, *t
	upper.key, lower.key = keys["top"], keys["low"]
	return &upper, &lower, nil
}
