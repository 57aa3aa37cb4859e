package responses

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/tidwall/gjson"

	"weir/tenants"
)

// Postgres is the Store of production. Content is sealed with the tenant's
// data key; an item is bound to its id, an object to its response.
type Postgres struct {
	app   *pgxpool.Pool
	vault *tenants.Vault
	cache *historyCache
	now   func() time.Time
}

var _ Store = (*Postgres)(nil)

// NewPostgres makes a store on the application's pool. cacheBytes bounds what
// is kept in memory of chains that were used lately: a turn then loads none of
// the earlier ones. 0 keeps none.
func NewPostgres(app *pgxpool.Pool, vault *tenants.Vault, cacheBytes int, now func() time.Time) *Postgres {
	return &Postgres{app: app, vault: vault, cache: newHistoryCache(cacheBytes), now: now}
}

const (
	aboutItem   = "item|"
	aboutObject = "response|"
)

// maxChain bounds how many turns a chain may have: what is loaded for one
// request ends somewhere.
const maxChain = 10_000

// History loads a chain: its last response, which has to be readable, and the
// items of all of them. One query, unless they are in memory.
func (p *Postgres) History(ctx context.Context, o Owner, id string) (*History, error) {
	if h, err := p.remembered(ctx, o, id); h != nil || err != nil {
		return h, err
	}
	h := &History{}
	err := p.askAll(ctx, o, "load chain of "+id, `
		WITH RECURSIVE chain AS (
		    SELECT id, previous_id, root, turn, status, 0 AS back
		      FROM responses
		     WHERE tenant_id = $1 AND id = $2 AND project_id = $3 AND `+live+`
		    UNION ALL
		    SELECT r.id, r.previous_id, r.root, r.turn, r.status, c.back + 1
		      FROM chain c
		      JOIN responses r ON r.tenant_id = $1 AND r.id = c.previous_id
		     WHERE c.back < $4
		)
		SELECT c.back, c.root, c.turn, c.status, coalesce(i.item_id, ''), coalesce(i.kind, ''), i.content
		  FROM chain c
		  LEFT JOIN response_items i ON i.tenant_id = $1 AND i.response_id = c.id
		 ORDER BY c.back DESC, i.position`, []any{o.Tenant, id, o.Project, maxChain}, h.read)
	if err != nil {
		return nil, err
	}
	if Terminal(h.Status) {
		p.cache.put(o, id, h)
	}
	return h, nil
}

// read takes the rows of a chain, oldest first.
func (h *History) read(rows pgx.Rows, keys *tenants.DataKeys) error {
	var back, turn int
	var root, status, id, kind string
	var box []byte
	_, err := pgx.ForEachRow(rows, []any{&back, &root, &turn, &status, &id, &kind, &box}, func() error {
		if back == 0 {
			h.Root, h.Turn, h.Status = root, turn+1, status
		}
		if id == "" {
			return nil
		}
		it, err := openItem(keys, id, kind, box)
		if err == nil {
			h.Items = append(h.Items, it)
		}
		return err
	})
	if err == nil && h.Root == "" {
		return ErrNotFound
	}
	return err
}

func openItem(keys *tenants.DataKeys, id, kind string, box []byte) (Item, error) {
	plain, err := keys.Open(box, aboutItem+id)
	if err != nil {
		return Item{}, fmt.Errorf("item %s: %w", id, err)
	}
	return Item{ID: id, Type: kind, JSON: plain}, nil
}

// Talk loads a conversation.
func (p *Postgres) Talk(ctx context.Context, o Owner, id string) (*History, error) {
	h := &History{}
	err := p.askAll(ctx, o, "load conversation "+id, `
		SELECT 0, c.id, 0, 'completed', coalesce(i.item_id, ''), coalesce(i.kind, ''), i.content
		  FROM conversations c
		  LEFT JOIN conversation_items i ON i.tenant_id = $1 AND i.conversation_id = c.id
		 WHERE c.tenant_id = $1 AND c.id = $2 AND c.project_id = $3
		 ORDER BY i.position`, []any{o.Tenant, id, o.Project}, h.read)
	if err != nil {
		return nil, err
	}
	for _, it := range h.Items {
		if it.Type == typeMessage && gjson.GetBytes(it.JSON, "role").Str == "user" {
			h.Turn++
		}
	}
	return h, nil
}

// Item finds one item, the newest where a caller used its id twice.
func (p *Postgres) Item(ctx context.Context, o Owner, id string) (it Item, err error) {
	err = p.ask(ctx, o, "load item "+id, `
		SELECT kind, content
		  FROM (SELECT i.kind, i.content, r.created_at
		          FROM response_items i
		          JOIN responses r ON r.tenant_id = $1 AND r.id = i.response_id
		         WHERE i.tenant_id = $1 AND i.item_id = $2 AND r.project_id = $3 AND `+live+`
		        UNION ALL
		        SELECT i.kind, i.content, c.created_at
		          FROM conversation_items i
		          JOIN conversations c ON c.tenant_id = $1 AND c.id = i.conversation_id
		         WHERE i.tenant_id = $1 AND i.item_id = $2 AND c.project_id = $3) AS found
		 ORDER BY created_at DESC
		 LIMIT 1`, []any{o.Tenant, id, o.Project},
		func(row pgx.Row, keys *tenants.DataKeys) error {
			var kind string
			var box []byte
			if err := row.Scan(&kind, &box); err != nil {
				return err
			}
			it, err = openItem(keys, id, kind, box)
			return err
		})
	return it, err
}

// Save seals a finished response.
func (p *Postgres) Save(ctx context.Context, r *Record) (func(*pgx.Batch), error) {
	keys, err := p.vault.Keys(ctx, r.Owner.Tenant)
	if err != nil {
		return nil, err
	}
	object := keys.Seal(r.Object, aboutObject+r.ID)
	items := sealItems(keys, r.Input, r.Output)
	var expires *time.Time
	if !r.ExpiresAt.IsZero() {
		expires = &r.ExpiresAt
	}
	return func(b *pgx.Batch) {
		b.Queue(`SELECT weir_keep_response($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)`,
			string(r.Owner.Tenant), r.ID, string(r.Owner.Project), string(r.Key), r.Previous, r.Conversation,
			r.Root, r.Turn, r.Status, r.Model, r.Background, r.Streamed,
			object, r.CreatedAt, expires, items.outputs, items.ids, items.kinds, items.contents)
	}, nil
}

// sealed are items as the columns of a table.
type sealed struct {
	outputs    []bool
	ids, kinds []string
	contents   [][]byte
}

func sealItems(keys *tenants.DataKeys, input, output []Item) sealed {
	s := sealed{outputs: []bool{}, ids: []string{}, kinds: []string{}, contents: [][]byte{}}
	for i, it := range append(slices.Clip(input), output...) {
		s.outputs = append(s.outputs, i >= len(input))
		s.ids, s.kinds = append(s.ids, it.ID), append(s.kinds, it.Type)
		s.contents = append(s.contents, keys.Seal(it.JSON, aboutItem+it.ID))
	}
	return s
}
