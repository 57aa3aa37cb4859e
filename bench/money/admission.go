package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/proc"
	"weir/bench/section"
	"weir/billing"
	"weir/gateway/admission"
)

const (
	admissions = 100_000
	admitters  = 8
)

// admitting measures what asking for limits and money costs a request.
func admitting(ctx context.Context, h *house) (string, error) {
	b, err := h.database(ctx, "admission")
	if err != nil {
		return "", err
	}
	defer b.close(ctx)
	tenant := tenantNamed(1)
	if _, err := b.worker.Exec(ctx, `SELECT weir_credit($1, 'paid', 1000000000000000, 'opening')`, tenant); err != nil {
		return "", err
	}
	running, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	funds := billing.NewFunds(slog.New(slog.DiscardHandler), b.worker, billing.FundsConfig{Replica: "rep_bench"}, time.Now)
	background.Go(func() { _ = funds.Run(running) })

	journal, err := admission.OpenJournal(h.dir + "/journal")
	if err != nil {
		return "", err
	}
	shared, pid, err := h.redis(running, &background)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("### Admission\n\n")
	fmt.Fprintf(&out, "%d requests by %d callers: admitted at four nodes (tenant, model, project, key) with requests and tokens a minute and slots, with an intent, and released. In process the intent goes to a file; Redis has limits and intents on the same machine.\n\n", admissions, admitters)
	section.Head(&out, "what", "p50", "p99", "CPU-us a request: Weir", "Redis")
	for _, c := range []struct {
		name  string
		store admission.Store
		money bool
	}{
		{"limits in process", admission.NewMemory(admission.MemoryConfig{Journal: journal}), false},
		{"limits in process, money", admission.NewMemory(admission.MemoryConfig{Journal: journal}), true},
		{"limits in Redis", shared, false},
		{"limits in Redis, money", shared, true},
	} {
		h.say("admission: " + c.name)
		a := admitter{store: c.store, tenant: tenant}
		if c.money {
			a.funds = funds
		}
		row, err := a.measure(ctx, pid)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		section.Row(&out, append([]string{c.name}, row...)...)
	}
	if !shared.Healthy() {
		return "", errors.New("the store lost its Redis, and measured itself without it")
	}
	return out.String(), errors.Join(journal.Close())
}

// redis starts one, and a store on it that Run keeps.
func (h *house) redis(ctx context.Context, background *sync.WaitGroup) (*admission.Redis, int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	cmd := exec.CommandContext(ctx, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", h.dir)
	if err := cmd.Start(); err != nil {
		return nil, 0, fmt.Errorf("redis-server (make test installs it): %w", err)
	}
	background.Go(func() { _ = cmd.Wait() })
	client, err := admission.Client(admission.ClientConfig{URL: "redis://127.0.0.1:" + port})
	if err != nil {
		return nil, 0, err
	}
	for deadline := time.Now().Add(10 * time.Second); client.Ping(ctx).Err() != nil; {
		if time.Now().After(deadline) {
			return nil, 0, errors.New("redis-server doesn't answer")
		}
		<-time.After(20 * time.Millisecond)
	}
	store := admission.NewRedis(slog.New(slog.DiscardHandler), client, admission.RedisConfig{Timeout: time.Second})
	background.Go(func() { _ = store.Run(ctx) })
	return store, cmd.Process.Pid, nil
}

// admitter admits and releases requests of one tenant.
type admitter struct {
	store  admission.Store
	funds  *billing.Funds // nil: without money
	tenant string
}

func (a admitter) measure(ctx context.Context, redis int) ([]string, error) {
	took := make([]time.Duration, admissions)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	ours, theirs := proc.Own(), proc.Of(redis)
	var callers sync.WaitGroup
	for range admitters {
		callers.Go(func() {
			for failed.Load() == nil {
				n := int(next.Add(1)) - 1
				if n >= admissions {
					return
				}
				began := time.Now()
				done, err := a.admit(ctx, n)
				took[n] = time.Since(began)
				if err == nil {
					err = done()
				}
				if err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	callers.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	ours, theirs = proc.Own()-ours, proc.Of(redis)-theirs
	slices.Sort(took)
	per := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/admissions) }
	return []string{
		took[admissions/2].Round(100 * time.Nanosecond).String(), took[admissions*99/100].Round(100 * time.Nanosecond).String(),
		per(ours), per(theirs),
	}, nil
}

func (a admitter) admit(ctx context.Context, n int) (done func() error, err error) {
	most := admission.Counts{Requests: 1 << 30, Tokens: 1 << 40, Uncached: 1 << 40, Generated: 1 << 40}
	id := fmt.Sprintf("req_%026d", n)
	r := &admission.Request{
		ID: id, Tenant: a.tenant, Estimate: admission.Counts{Requests: 1, Tokens: 1500, Uncached: 500, Generated: 1000},
		Intent: &admission.Intent{
			Request: id, Tenant: a.tenant, Project: "prj_bench", Key: "key_bench", Model: "org/model", Operation: "chat", Tier: "default",
			Mode: "enforce", PriceVersion: 1, Prompt: 500, StartedAt: time.Now(), Replica: "rep_bench",
		},
	}
	for _, node := range [...]string{a.tenant, a.tenant + "/mdl_bench", "prj_bench", "key_bench"} {
		r.Nodes = append(r.Nodes, admission.Node{ID: node, PerMinute: most, Concurrency: 1 << 20})
	}
	release := func() {}
	if a.funds != nil {
		hold, err := a.funds.Hold(ctx, billing.HoldRequest{Tenant: a.tenant, Nodes: []string{a.tenant, "prj_bench", "key_bench"}, Nano: requestNano})
		if err != nil {
			return nil, err
		}
		r.Intent.Chunks = hold.Chunks()
		release = hold.Release
	}
	v, err := a.store.Admit(ctx, r)
	if err == nil && !v.Admitted {
		err = fmt.Errorf("refused: %+v", v)
	}
	return func() error {
		release()
		return a.store.Release(ctx, r, admission.Counts{Requests: 1, Tokens: 700, Uncached: 400, Generated: 300})
	}, err
}
