package catalogue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/billing"
	"weir/tenants"
)

// channel is where a change of the catalogue is announced.
const channel = "weir_catalogue"

// Options say how to apply a document.
type Options struct {
	DryRun bool // do everything, then roll back
	Prune  bool // remove what the document doesn't name (never prices)

	// Billed refuses a catalogue in which a model has no price. Otherwise that
	// is but a warning.
	Billed bool
	Warn   func(string) // takes warnings; nil ignores them
}

// errRollBack ends a dry run.
var errRollBack = errors.New("dry run")

// Apply makes the database hold what the document says, in one transaction as
// weir_app, and returns what changed. Applying the same document again changes
// nothing. Two calls at once wait for one another. An error means that nothing
// was changed; it joins all that is wrong with the document.
func Apply(ctx context.Context, app *pgxpool.Pool, doc *Document, o Options) (Changes, error) {
	changes, err := change(ctx, app, o.DryRun, func(tx pgx.Tx) (Changes, error) { return apply(ctx, tx, doc, o) })
	if err != nil {
		return nil, fmt.Errorf("apply catalogue: %w", err)
	}
	return changes, nil
}

// change alters the catalogue, one caller after the other, and announces it.
func change(ctx context.Context, app *pgxpool.Pool, dryRun bool, alter func(pgx.Tx) (Changes, error)) (Changes, error) {
	var changes Changes
	err := pgx.BeginFunc(ctx, app, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('weir.catalogue'))`); err != nil {
			return err
		}
		if changes, err = alter(tx); err != nil {
			return err
		}
		if dryRun {
			return errRollBack
		}
		if len(changes) > 0 {
			_, err = tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel)
		}
		return err
	})
	if err != nil && !errors.Is(err, errRollBack) {
		return nil, err
	}
	return changes, nil
}

func apply(ctx context.Context, tx pgx.Tx, doc *Document, o Options) (Changes, error) {
	old, _, err := read(ctx, tx)
	if err != nil {
		return nil, err
	}
	fresh := old.merge(doc, o.Prune)
	if err := errors.Join(fresh.Validate(), doc.strayPrices(fresh)); err != nil {
		return nil, err
	}
	changes, err := diff(old, fresh)
	if err != nil {
		return nil, err
	}
	if len(changes) > 0 {
		if err := write(ctx, tx, old, fresh); err != nil {
			return nil, err
		}
	}
	prices, err := billing.PutPrices(ctx, tx, "", doc.Prices)
	if err != nil {
		return nil, err
	}
	for _, p := range prices {
		changes = append(changes, p.String())
	}
	return changes, o.checkPrices(ctx, tx, fresh)
}

// write replaces the rows that differ. Endpoints and names are few and belong
// to what they stand under: theirs are replaced whole.
func write(ctx context.Context, tx pgx.Tx, old, fresh *Document) error {
	if err := tenants.PutPlans(ctx, tx, fresh.Plans); err != nil {
		return err
	}
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(old.Plans)) {
		if _, stays := fresh.Plans[name]; !stays {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		if err := tenants.RemovePlans(ctx, tx, gone); err != nil {
			return err
		}
	}
	b := &pgx.Batch{}
	for _, table := range []string{"bands", "pools", "models"} { // endpoints and names go with theirs
		b.Queue(`DELETE FROM ` + table)
	}
	for _, band := range fresh.Bands {
		b.Queue(`INSERT INTO bands (name, priority) VALUES ($1, $2)`, band.Name, band.Priority)
	}
	for _, p := range fresh.Pools {
		if err := queuePool(b, p); err != nil {
			return err
		}
	}
	var now int64
	if err := tx.QueryRow(ctx, `SELECT extract(epoch FROM now())::bigint`).Scan(&now); err != nil {
		return err
	}
	for _, m := range fresh.Models {
		m.Created = cmp.Or(m.Created, now)
		body, err := encode(m)
		if err != nil {
			return err
		}
		b.Queue(`INSERT INTO models (name, body) VALUES ($1, $2)`, m.Name, body)
		b.Queue(`INSERT INTO model_names (name, model) SELECT unnest($1::text[]), $2`, append([]string{m.Name}, m.Aliases...), m.Name)
	}
	return tx.SendBatch(ctx, b).Close()
}

func queuePool(b *pgx.Batch, p Pool) error {
	endpoints := p.Endpoints
	p.Endpoints = nil
	body, err := encode(p)
	if err != nil {
		return err
	}
	b.Queue(`INSERT INTO pools (name, body) VALUES ($1, $2)`, p.Name, body)
	for _, e := range endpoints {
		body, err := encode(e)
		if err != nil {
			return err
		}
		b.Queue(`INSERT INTO endpoints (pool, id, body) VALUES ($1, $2, $3)`, p.Name, e.ID, body)
	}
	return nil
}
