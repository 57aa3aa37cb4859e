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

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Load reads the whole catalogue.
func Load(ctx context.Context, q Querier) (*Snapshot, error) {
	doc, book, err := read(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("load catalogue: %w", err)
	}
	return newSnapshot(doc, book), nil
}

// Document writes the catalogue as an operator would have: applying it changes
// nothing. Prices are those in effect.
func (s *Snapshot) Document() *Document { return s.doc }

func read(ctx context.Context, q Querier) (*Document, *billing.Book, error) {
	doc := &Document{APIVersion: Version}
	rows, err := q.Query(ctx, `SELECT name, priority FROM bands ORDER BY priority DESC`)
	if err != nil {
		return nil, nil, err
	}
	if doc.Bands, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Band]); err != nil {
		return nil, nil, err
	}
	if doc.Pools, err = bodies[Pool](ctx, q, `SELECT body FROM pools ORDER BY name`); err != nil {
		return nil, nil, err
	}
	for i := range doc.Pools {
		p := &doc.Pools[i]
		if p.Endpoints, err = bodies[Endpoint](ctx, q, `SELECT body FROM endpoints WHERE pool = $1 ORDER BY id`, p.Name); err != nil {
			return nil, nil, err
		}
	}
	if doc.Models, err = bodies[Model](ctx, q, `SELECT body FROM models ORDER BY name`); err != nil {
		return nil, nil, err
	}
	if doc.Plans, err = tenants.LoadPlans(ctx, q); err != nil {
		return nil, nil, err
	}
	book, err := billing.LoadBook(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range doc.Models {
		if p, priced := book.Rate(m.Name, time.Now()); priced {
			doc.Prices = append(doc.Prices, p.Spec())
		}
	}
	return doc, book, nil
}

// bodies reads one column of JSON. JSON is YAML, so that one set of names and
// one reader serve the document and the database.
func bodies[T any](ctx context.Context, q Querier, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
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
