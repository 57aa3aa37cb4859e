package responses

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/maypok86/otter/v2"

	"weir/tenants"
)

// historyCache keeps chains that were used lately, so that a turn costs what is
// new in it. A chain never changes once its last response has ended; whether it
// may still be read is asked every time.
type historyCache struct {
	chains *otter.Cache[chainKey, *History] // nil: none
}

// chainKey has the owner in it: nobody finds another's chain.
type chainKey struct {
	owner Owner
	id    string
}

func newHistoryCache(bytes int) *historyCache {
	if bytes <= 0 {
		return &historyCache{}
	}
	chains, err := otter.New(&otter.Options[chainKey, *History]{
		MaximumWeight: uint64(bytes),
		Weigher: func(_ chainKey, h *History) uint32 {
			n := 256
			for _, it := range h.Items {
				n += len(it.JSON) + len(it.plain.text) + 128
			}
			return uint32(min(n, 1<<31))
		},
	})
	if err != nil { // only for options that contradict each other
		return &historyCache{}
	}
	return &historyCache{chains: chains}
}

func (c *historyCache) put(o Owner, id string, h *History) {
	if c.chains != nil {
		for i := range h.Items {
			h.Items[i].findPlain()
		}
		c.chains.Set(chainKey{o, id}, h)
	}
}

func (c *historyCache) get(o Owner, id string) *History {
	if c.chains == nil {
		return nil
	}
	h, _ := c.chains.GetIfPresent(chainKey{o, id})
	return h
}

// remembered is the chain from memory, if it is there and may be read; nil
// where it has to be loaded.
func (p *Postgres) remembered(ctx context.Context, o Owner, id string) (*History, error) {
	h := p.cache.get(o, id)
	if h == nil {
		return nil, nil //nolint:nilnil // nothing remembered is no error
	}
	err := p.ask(ctx, o, "look for "+id, `
		SELECT true
		  FROM responses
		 WHERE tenant_id = $1 AND id = $2 AND project_id = $3 AND `+live, []any{o.Tenant, id, o.Project},
		func(row pgx.Row, _ *tenants.DataKeys) error {
			var readable bool
			return row.Scan(&readable)
		})
	if err != nil {
		return nil, err
	}
	return h, nil
}
