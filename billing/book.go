package billing

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Book is an immutable snapshot of all prices, past and to come. A nil Book is
// empty. It is safe for concurrent use.
type Book struct {
	models map[string][]Price // oldest first
}

// NewBook makes a book of the given prices.
func NewBook(prices []Price) *Book {
	b := &Book{models: make(map[string][]Price)}
	for _, p := range prices {
		b.models[p.Model] = append(b.models[p.Model], p)
	}
	for _, versions := range b.models {
		slices.SortFunc(versions, func(p, q Price) int {
			return cmp.Or(p.EffectiveFrom.Compare(q.EffectiveFrom), cmp.Compare(p.Version, q.Version))
		})
	}
	return b
}

// Rate is the price of the model at a moment; false when it had none. Requests
// are rated at the moment they started: that is the price that was promised.
func (b *Book) Rate(model string, at time.Time) (Price, bool) {
	if b == nil {
		return Price{}, false
	}
	versions := b.models[model]
	n, _ := slices.BinarySearchFunc(versions, at, func(p Price, at time.Time) int {
		if p.EffectiveFrom.After(at) {
			return 1
		}
		return -1
	})
	if n == 0 {
		return Price{}, false
	}
	return versions[n-1], true
}

// find is the version that takes effect at exactly the given moment.
func (b *Book) find(model string, from time.Time) (Price, bool) {
	p, ok := b.Rate(model, from)
	return p, ok && p.EffectiveFrom.Equal(from)
}

// Querier reads rows: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// LoadBook reads all prices.
func LoadBook(ctx context.Context, q Querier) (*Book, error) {
	rows, err := q.Query(ctx, `
		SELECT model, version, effective_from, input_pico, cached_input_pico, output_pico, reasoning_pico
		FROM prices`)
	if err != nil {
		return nil, fmt.Errorf("load price book: %w", err)
	}
	prices, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Price])
	if err != nil {
		return nil, fmt.Errorf("load price book: %w", err)
	}
	return NewBook(prices), nil
}

// PutPrices publishes what the specs change, in the caller's transaction. A
// spec that names no time and equals the price in effect, or that repeats a
// published version, changes nothing. Every other one becomes a new version.
// Published versions are never edited, and the past of a model that has a price
// isn't rewritten; the error is then ErrPrice. Calls wait for one another.
func PutPrices(ctx context.Context, tx pgx.Tx, specs []PriceSpec) error {
	var now time.Time
	err := tx.QueryRow(ctx, `SELECT now() FROM pg_advisory_xact_lock(hashtext('weir.prices'))`).Scan(&now)
	if err != nil {
		return fmt.Errorf("put prices: %w", err)
	}
	book, err := LoadBook(ctx, tx)
	if err != nil {
		return fmt.Errorf("put prices: %w", err)
	}
	fresh, err := book.changes(specs, now)
	if err != nil {
		return fmt.Errorf("put prices: %w", err)
	}
	batch := &pgx.Batch{}
	for _, p := range fresh {
		batch.Queue(`
			INSERT INTO prices (model, effective_from, input_pico, cached_input_pico, output_pico, reasoning_pico)
			VALUES ($1, $2, $3, $4, $5, $6)`,
			p.Model, p.EffectiveFrom, p.Input, p.CachedInput, p.Output, p.Reasoning)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("put prices: %w", err)
	}
	return nil
}

// changes lists the versions that the specs add to the book at the moment now.
func (b *Book) changes(specs []PriceSpec, now time.Time) ([]Price, error) {
	type start struct {
		model string
		micro int64
	}
	var fresh []Price
	seen := make(map[start]bool, len(specs))
	for _, spec := range specs {
		p, isNew, err := b.resolve(spec, now)
		if err != nil {
			return nil, err
		}
		at := start{p.Model, p.EffectiveFrom.UnixMicro()}
		if seen[at] {
			return nil, fmt.Errorf("%w: %s has two prices from the same time", ErrPrice, p.Model)
		}
		seen[at] = true
		if isNew {
			fresh = append(fresh, p)
		}
	}
	return fresh, nil
}

// resolve finds the published version that a spec means, or makes a new one.
func (b *Book) resolve(spec PriceSpec, now time.Time) (p Price, isNew bool, err error) {
	p, err = spec.Price()
	if err != nil {
		return Price{}, false, err
	}
	current, priced := b.Rate(p.Model, now)
	if p.EffectiveFrom.IsZero() {
		if priced && current.sameRates(p) {
			return current, false, nil
		}
		p.EffectiveFrom = now
	}
	switch old, published := b.find(p.Model, p.EffectiveFrom); {
	case published && old.sameRates(p):
		return old, false, nil
	case published, priced && p.EffectiveFrom.Before(now):
		return Price{}, false, fmt.Errorf("%w: %s: what it costs from %s is published; leave effective_from out, or name a time to come",
			ErrPrice, p.Model, p.EffectiveFrom.UTC().Format(time.RFC3339))
	default:
		return p, true, nil
	}
}
