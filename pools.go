package main

import (
	"weir/gateway"
	"weir/scheduler/pool"
)

// poolPage is a pool as /ops/v1/pools shows it.
type poolPage struct {
	pool.Snapshot

	Shared    *gateway.SharedState `json:"shared,omitempty"`    // nil where replicas schedule by themselves; else the state is that of what stands in
	Isolation *gateway.Isolation   `json:"isolation,omitempty"` // nil where it claims none
}

func poolPages(pools map[string]pool.Snapshot, shared map[string]gateway.SharedState, isolation map[string]gateway.Isolation) map[string]poolPage {
	pages := make(map[string]poolPage, len(pools))
	for name, p := range pools {
		page := poolPage{Snapshot: p}
		if s, ok := shared[name]; ok {
			page.Shared = &s
		}
		if i, ok := isolation[name]; ok {
			page.Isolation = &i
		}
		pages[name] = page
	}
	return pages
}
