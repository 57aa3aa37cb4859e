package admission

import (
	"context"
	"fmt"
	"slices"
)

// Look implements Store. While Redis is away it tells of this replica's share.
func (r *Redis) Look(ctx context.Context, tenant string, nodes []Node) ([]Standing, error) {
	if r.lost.Load() {
		return r.local.Look(ctx, tenant, r.shares(nodes))
	}
	out := make([]Standing, 0, len(nodes))
	for some := range slices.Chunk(nodes, MaxNodes) {
		call, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		g := group{tenant: tenant, nodes: some}
		answer, err := r.look.Run(call, r.client, g.keys()).Int64Slice()
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				r.failed(err)
			}
			return nil, fmt.Errorf("admission: look at limits: %w", err)
		}
		for i := range some {
			at := i * (meters + 1)
			out = append(out, some[i].stand([meters]int64(answer[at:at+meters]), int(answer[at+meters])))
		}
	}
	return out, nil
}
