package catalogue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	"weir/billing"
	"weir/tenants"
)

// DB begins transactions: a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Load reads the whole catalogue as it is at one moment: never half of a change.
func Load(ctx context.Context, db DB) (s *Snapshot, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		doc, book, err := read(ctx, tx)
		if err == nil {
			s = newSnapshot(doc, book)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load catalogue: %w", err)
	}
	return s, nil
}

// Document writes the catalogue as an operator would have: applying it changes
// nothing. Prices are those in effect.
func (s *Snapshot) Document() *Document { return s.doc }

func read(ctx context.Context, tx pgx.Tx) (*Document, *billing.Book, error) {
	doc := &Document{APIVersion: Version}
	rows, err := tx.Query(ctx, `SELECT name, priority FROM bands ORDER BY priority DESC`)
	if err != nil {
		return nil, nil, err
	}
	if doc.Bands, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Band]); err != nil {
		return nil, nil, err
	}
	if doc.Pools, err = bodies[Pool](ctx, tx, `SELECT body FROM pools ORDER BY name`); err != nil {
		return nil, nil, err
	}
	for i := range doc.Pools {
		p := &doc.Pools[i]
		if p.Endpoints, err = bodies[Endpoint](ctx, tx, `SELECT body FROM endpoints WHERE pool = $1 ORDER BY id`, p.Name); err != nil {
			return nil, nil, err
		}
	}
	if doc.Models, err = bodies[Model](ctx, tx, `SELECT body FROM models ORDER BY name`); err != nil {
		return nil, nil, err
	}
	if doc.Plans, err = tenants.LoadPlans(ctx, tx); err != nil {
		return nil, nil, err
	}
	book, err := billing.LoadBook(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range doc.Models {
		if p, priced := book.Rate(m.Name, "", time.Now()); priced {
			doc.Prices = append(doc.Prices, p.Spec())
		}
	}
	return doc, book, nil
}

// bodies reads one column of JSON. JSON is YAML, so that one set of names and
// one reader serve the document and the database.
func bodies[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v T, err error) {
		var raw []byte
		if err := row.Scan(&raw); err != nil {
			return v, err
		}
		return v, yaml.Unmarshal(raw, &v)
	})
}

// encode writes v as JSON under its YAML names.
func encode(v any) ([]byte, error) {
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, err
	}
	var plain any
	if err := yaml.Unmarshal(text, &plain); err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}
