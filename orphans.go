package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/gateway"
)

const (
	orphansEvery = 15 * time.Second
	orphansRetry = time.Second
	orphansGrace = 10 * time.Minute // beyond orphan_after: by then what was left is settled, or can't be
)

// orphanArgs are the job that settles what dead replicas left.
type orphanArgs struct{}

// Kind is the job's name in the queue.
func (orphanArgs) Kind() string { return "orphan_sweep" }

func (p *program) buildOrphans(limits limitStore, registry *prometheus.Registry) {
	chunks := billing.NewDeadChunks(p.worker, p.cfg.OrphanAfter)
	p.orphans = gateway.NewOrphans(p.log, registry, limits, chunks, p.settler, p.catalogue)
	p.background = append(p.background, p.settleOwn)
}

// settleOrphans settles what replicas left that are gone for good. After a gap in
// which nobody may have reached Postgres all look so: then it waits until those
// that live have said it.
func (p *program) settleOrphans(ctx context.Context) error {
	if !p.replicas.Steady() {
		return nil
	}
	gone, err := p.replicas.Gone(ctx, p.cfg.OrphanAfter)
	if err != nil {
		return err
	}
	if _, err := p.orphans.Sweep(ctx, gone); err != nil || len(gone) == 0 {
		return err
	}
	return p.replicas.Forget(ctx, gone)
}

// settleOwn settles what earlier processes left in this state folder, which no
// other replica sees, as soon as that can be stored.
func (p *program) settleOwn(ctx context.Context) error {
	for {
		_, err := p.orphans.SettleOwn(ctx)
		if err == nil {
			return nil
		}
		p.log.WarnContext(ctx, "what an earlier process left can't be settled yet", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(orphansRetry):
		}
	}
}
