package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// ErrNoReceipt is a request that has no receipt, at least none of the tenant.
var ErrNoReceipt = errors.New("billing: no such receipt")

// Rating is what a receipt was found to cost at one time.
type Rating struct {
	At           time.Time `json:"at"`
	PriceVersion int64     `json:"price_version"` // 0: there was no price
	CostNano     int64     `json:"cost_nano"`
	SavedNano    int64     `json:"saved_nano"`
	LedgerTxn    int64     `json:"ledger_txn,omitempty"` // that booked it, or its difference; 0: none
	Bill         *Bill     `json:"bill,omitempty"`       // how it came about
	Fault        string    `json:"fault,omitempty"`      // why there is no Bill that gives this cost
}

// Explanation is a receipt with all its ratings: its own, and corrections.
type Explanation struct {
	Receipt Settled  `json:"receipt"`
	Ratings []Rating `json:"ratings"`
}

// Explain leads from a request to its cost: usage, price version and ledger
// transaction. tx is a transaction of that tenant. The error is ErrNoReceipt
// where the tenant has none of that id.
func Explain(ctx context.Context, tx pgx.Tx, tenant tenants.ID, requestID string) (*Explanation, error) {
	page, err := Receipts(ctx, tx, string(tenant), Filter{RequestID: requestID, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Receipts) == 0 || requestID == "" {
		return nil, fmt.Errorf("%w: %s", ErrNoReceipt, requestID)
	}
	r := page.Receipts[0]
	book, err := LoadBook(ctx, tx)
	if err != nil {
		return nil, err
	}
	corrections, err := ratings(ctx, tx, tenant, []string{requestID})
	if err != nil {
		return nil, err
	}
	own := Rating{At: r.SettledAt, PriceVersion: r.PriceVersion, CostNano: r.CostNano, SavedNano: r.SavedNano, LedgerTxn: r.LedgerTxn}
	e := &Explanation{Receipt: r, Ratings: append([]Rating{own}, corrections[requestID]...)}
	for i := range e.Ratings {
		e.Ratings[i].explain(book, &r.Receipt)
	}
	return e, nil
}

func (g *Rating) explain(book *Book, r *Receipt) {
	if g.PriceVersion == 0 {
		g.Fault = "the model had no price"
		return
	}
	p, ok := book.Version(g.PriceVersion)
	if !ok {
		g.Fault = fmt.Sprintf("there is no price of version %d", g.PriceVersion)
		return
	}
	bill, err := p.Explain(r.Usage, tenants.Tier(r.Tier))
	switch {
	case err != nil:
		g.Fault = err.Error()
	case bill.CostNano != g.CostNano:
		g.Fault = fmt.Sprintf("its price gives %s USD", FormatMoney(bill.CostNano))
	default:
		g.Bill = &bill
	}
}

// ratings reads the corrections of receipts, the oldest first.
func ratings(ctx context.Context, q Querier, tenant tenants.ID, requests []string) (map[string][]Rating, error) {
	rows, err := q.Query(ctx, `
		SELECT request_id, rated_at, price_version, cost_nano, saved_nano, coalesce(ledger_txn, 0)
		FROM ratings
		WHERE tenant_id = $1 AND request_id = ANY ($2)
		ORDER BY request_id, nth`, tenant, requests)
	if err != nil {
		return nil, fmt.Errorf("read ratings: %w", err)
	}
	all := make(map[string][]Rating)
	var id string
	var g Rating
	_, err = pgx.ForEachRow(rows, []any{&id, &g.At, &g.PriceVersion, &g.CostNano, &g.SavedNano, &g.LedgerTxn}, func() error {
		all[id] = append(all[id], g)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read ratings: %w", err)
	}
	return all, nil
}

// Correction is a request whose rating a ledger transaction corrected.
type Correction struct {
	RequestID    string `json:"request_id"`
	PriceVersion int64  `json:"price_version"`
	CostNano     int64  `json:"cost_nano"` // from then on
}

// corrections reads what a transaction corrected: a batch of ApplyReratings.
func corrections(ctx context.Context, q Querier, tenant string, txn int64) ([]Correction, error) {
	rows, err := q.Query(ctx, `
		SELECT request_id, price_version, cost_nano
		FROM ratings
		WHERE tenant_id = $1 AND ledger_txn = $2
		ORDER BY request_id`, tenant, txn)
	if err != nil {
		return nil, fmt.Errorf("read ratings: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Correction])
	if err != nil {
		return nil, fmt.Errorf("read ratings: %w", err)
	}
	return all, nil
}
