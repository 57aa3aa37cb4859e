package billing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// promise is how long after a price was published receipts may still have the
// one before: until every replica has heard of it, that is what callers are
// promised.
const promise = time.Minute

// Rerating is a receipt that the price book rates otherwise than it was.
type Rerating struct {
	Receipt    Settled
	WasVersion int64 // of its last rating
	WasNano    int64
	Version    int64 // 0 where Fault is set
	Cost       Cost
	Fault      error // why it can't be rated
}

// DifferenceNano is what the tenant was billed too much; negative: too little.
func (g *Rerating) DifferenceNano() int64 {
	if g.Fault != nil {
		return 0
	}
	return g.WasNano - g.Cost.Nano
}

// Billed reports whether the tenant paid for the request, so that a difference
// is to be corrected in the ledger.
func (g *Rerating) Billed() bool { return g.Receipt.Mode == ModeEnforce }

// Reratings rates a page of a tenant's receipts again, at the book's prices of
// the moments when they started, and lists those that it rates otherwise. tx is
// a transaction of that tenant. next is where the following page begins; it is
// zero after the last one.
func Reratings(ctx context.Context, tx pgx.Tx, book *Book, tenant tenants.ID, f Filter) (differ []Rerating, next Cursor, err error) {
	page, err := Receipts(ctx, tx, string(tenant), f)
	if err != nil {
		return nil, Cursor{}, err
	}
	ids := make([]string, len(page.Receipts))
	for i := range page.Receipts {
		ids[i] = page.Receipts[i].RequestID
	}
	corrected, err := ratings(ctx, tx, tenant, ids)
	if err != nil {
		return nil, Cursor{}, err
	}
	for _, r := range page.Receipts {
		g := Rerating{Receipt: r, WasVersion: r.PriceVersion, WasNano: r.CostNano}
		if again := corrected[r.RequestID]; len(again) > 0 {
			last := again[len(again)-1]
			g.WasVersion, g.WasNano = last.PriceVersion, last.CostNano
		}
		if g.rate(book) {
			differ = append(differ, g)
		}
	}
	return differ, page.Next, nil
}

// rate finds what the receipt should have cost, and reports whether that is
// something else than it did.
func (g *Rerating) rate(book *Book) (differs bool) {
	r := &g.Receipt
	p, ok := book.Rate(r.Model, tenants.ID(r.Tenant), r.StartedAt)
	if !ok {
		return false // it had no price then, and has none now
	}
	if g.promised(&p) {
		if p, ok = book.Version(g.WasVersion); !ok {
			return false
		}
	}
	cost, err := p.Cost(r.Usage, tenants.Tier(r.Tier))
	if err != nil {
		g.Fault = err
		return true
	}
	g.Version, g.Cost = p.Version, cost
	return cost.Nano != g.WasNano
}

// promised reports whether the receipt has another price than p because a
// replica hadn't heard of p when it began. One that was published for the past
// corrects what was promised.
func (g *Rerating) promised(p *Price) bool {
	heard := p.PublishedAt.Add(promise)
	return g.WasVersion != 0 && g.WasVersion != p.Version &&
		!p.EffectiveFrom.Before(p.PublishedAt) && g.Receipt.StartedAt.Before(heard)
}

// ApplyReratings books what those of the given that are paid for were billed too
// much or too little, as one correction of the tenant's, and stores their new
// ratings, as weir_worker. What was corrected meanwhile is left out, so that it
// may be called again; ref must be the same then, and no other batch's. It
// returns how many ratings it stored and their difference, in nano-USD in the
// tenant's favour.
func ApplyReratings(ctx context.Context, worker Querier, tenant tenants.ID, batch []Rerating, ref, note string) (stored, differenceNano int64, err error) {
	var (
		requests                      []string
		settled                       []time.Time
		was, versions, costs, savings []int64
	)
	for i := range batch {
		if g := &batch[i]; g.Fault == nil && g.Billed() {
			requests, settled = append(requests, g.Receipt.RequestID), append(settled, g.Receipt.SettledAt)
			was, versions = append(was, g.WasNano), append(versions, g.Version)
			costs, savings = append(costs, g.Cost.Nano), append(savings, g.Cost.SavedNano)
		}
	}
	if len(requests) == 0 {
		return 0, 0, nil
	}
	rows, err := worker.Query(ctx, `SELECT changed, amount FROM weir_rerate($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		tenant, requests, settled, was, versions, costs, savings, ref, note)
	if err != nil {
		return 0, 0, fmt.Errorf("correct %d receipts of %s: %w", len(requests), tenant, err)
	}
	_, err = pgx.ForEachRow(rows, []any{&stored, &differenceNano}, func() error { return nil })
	if err != nil {
		return 0, 0, fmt.Errorf("correct %d receipts of %s: %w", len(requests), tenant, err)
	}
	return stored, differenceNano, nil
}
