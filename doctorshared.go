package main

import (
	"context"
	"fmt"

	"weir/gateway"
	"weir/gateway/catalogue"
)

// checkShared looks at a pool's shared scheduler: whether its processes answer,
// and whether it knows the bands.
func checkShared(ctx context.Context, snapshot *catalogue.Snapshot, p *catalogue.Pool) (list []finding) {
	about := "pool " + p.Name + ", its scheduler"
	if p.Scheduler.Plaintext() {
		list = append(list, fault(about, "it is reached without TLS", "write grpcs:// and tls: in the catalogue: `weir serve` doesn't use it so"))
	}
	found, err := gateway.LookAtShared(ctx, snapshot, p)
	if err != nil {
		return append(list, fault(about, err.Error(), "correct scheduler.tls of the pool in the catalogue"))
	}
	for _, e := range found.Schedulers {
		at := fmt.Sprintf("pool %s, scheduler %s", p.Name, e.Address)
		switch {
		case e.Waits:
			list = append(list, fine(at+", which waits to take over"))
		case !e.Up:
			list = append(list, warning(at, e.Fault, "start it, or correct scheduler.epp in the catalogue"))
		case e.Fault != "":
			list = append(list, warning(at, e.Fault, "see docs/shared-scheduler.md"))
		default:
			list = append(list, fine(at))
		}
	}
	for _, missing := range found.ObjectivesMissing {
		list = append(list, warning(about, missing, "deploy/llm-d/objectives.yaml has those of the default bands"))
	}
	if found.ObjectivesUnknown != "" {
		list = append(list, warning(about, found.ObjectivesUnknown, "without them nobody sees whether bands have their priority (docs/shared-scheduler.md)"))
	}
	return list
}
