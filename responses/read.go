package responses

import (
	"context"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Object returns a kept response as its caller last saw it.
func (p *Postgres) Object(ctx context.Context, o Owner, id string) (object []byte, err error) {
	err = p.ask(ctx, o, "load response "+id, `
		SELECT object
		  FROM responses
		 WHERE tenant_id = $1 AND id = $2 AND project_id = $3 AND `+live, []any{o.Tenant, id, o.Project},
		func(row pgx.Row, keys *tenants.DataKeys) error {
			var box []byte
			if err := row.Scan(&box); err != nil {
				return err
			}
			object, err = keys.Open(box, aboutObject+id)
			return err
		})
	return object, err
}

// Delete makes a response unreadable at once. Its items live until no other
// response goes on from it. One that still runs is cancelled first by whoever
// runs it.
func (p *Postgres) Delete(ctx context.Context, o Owner, id string) error {
	return p.ask(ctx, o, "delete response "+id, `
		UPDATE responses
		   SET deleted_at = now()
		 WHERE tenant_id = $1 AND id = $2 AND project_id = $3 AND `+live+`
		RETURNING true`, []any{o.Tenant, id, o.Project},
		func(row pgx.Row, _ *tenants.DataKeys) error {
			var deleted bool
			return row.Scan(&deleted)
		})
}

// Input is what a response was given: the items that it goes on from, then its
// own, oldest first.
func (p *Postgres) Input(ctx context.Context, o Owner, id string) ([]Item, error) {
	h, err := p.History(ctx, o, id)
	if err != nil {
		return nil, err
	}
	var made int
	err = p.ask(ctx, o, "load input of "+id, `
		SELECT count(*)
		  FROM response_items
		 WHERE tenant_id = $1 AND response_id = $2 AND output`, []any{o.Tenant, id},
		func(row pgx.Row, _ *tenants.DataKeys) error { return row.Scan(&made) })
	if err != nil {
		return nil, err
	}
	return h.Items[:len(h.Items)-min(made, len(h.Items))], nil
}
