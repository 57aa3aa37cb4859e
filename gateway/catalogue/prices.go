package catalogue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/billing"
	"weir/tenants"
)

// strayPrices complains about prices of models that nobody sells.
func (d *Document) strayPrices(merged *Document) error {
	sold := map[string]bool{}
	for _, m := range merged.Models {
		sold[m.Name] = true
	}
	var c complaints
	for _, p := range d.Prices {
		if !sold[p.Model] {
			c.add("price of %q: no model has that name (a price goes to a name, not to an alias)", p.Model)
		}
	}
	return errors.Join(c...)
}

// checkPrices complains about models that the catalogue sells and that have no
// price at this moment. A price covers all operations of its model, and a tier
// without a multiplier isn't served, so whatever is sold has one.
func (o Options) checkPrices(ctx context.Context, tx pgx.Tx, fresh *Document) error {
	var now time.Time
	if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return err
	}
	book, err := billing.LoadBook(ctx, tx)
	if err != nil {
		return err
	}
	var c complaints
	for _, name := range fresh.unpriced(book, now) {
		c.add("model %s: it has no price at present: add one under prices: (free: true, if it is to cost nothing)", name)
	}
	if o.Billed {
		return errors.Join(c...)
	}
	for _, w := range c {
		if o.Warn != nil {
			o.Warn(w.Error())
		}
	}
	return nil
}

// unpriced lists the models that are sold at a moment and have no price.
func (d *Document) unpriced(book *billing.Book, at time.Time) (names []string) {
	for _, m := range d.Models {
		if _, priced := book.Rate(m.Name, "", at); !priced && m.Sold(at) {
			names = append(names, m.Name)
		}
	}
	return names
}

// Unpriced lists the models that are sold at a moment and have no price.
func (s *Snapshot) Unpriced(at time.Time) []string { return s.doc.unpriced(s.Prices, at) }

// PublishPrices publishes what the specs change, of the list or of one tenant,
// in the caller's transaction (billing.PutPrices), and announces it: running
// replicas follow as soon as it commits.
func PublishPrices(ctx context.Context, tx pgx.Tx, tenant tenants.ID, specs []billing.PriceSpec) ([]billing.PriceChange, error) {
	if err := CheckPrices(ctx, tx, specs); err != nil {
		return nil, err
	}
	changes, err := billing.PutPrices(ctx, tx, tenant, specs)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel); err != nil {
		return nil, fmt.Errorf("announce prices: %w", err)
	}
	return changes, nil
}

// CheckPrices complains about prices of what nobody sells.
func CheckPrices(ctx context.Context, tx pgx.Tx, specs []billing.PriceSpec) error {
	sold, err := bodies[Model](ctx, tx, `SELECT body FROM models`)
	if err != nil {
		return fmt.Errorf("read models: %w", err)
	}
	d := &Document{Prices: specs}
	return d.strayPrices(&Document{Models: sold})
}
