package responses

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/tenants"
)

const (
	aboutChat     = "chat|"
	aboutMessages = "messages|"
)

var _ ChatStore = (*Postgres)(nil)

// SaveChat seals a chat completion.
func (p *Postgres) SaveChat(ctx context.Context, r *ChatRecord) (func(*pgx.Batch), error) {
	keys, err := p.vault.Keys(ctx, r.Owner.Tenant)
	if err != nil {
		return nil, err
	}
	messages, object := keys.Seal(r.Messages, aboutMessages+r.ID), keys.Seal(r.Object, aboutChat+r.ID)
	var expires *time.Time
	if !r.ExpiresAt.IsZero() {
		expires = &r.ExpiresAt
	}
	return func(b *pgx.Batch) {
		b.Queue(`SELECT weir_keep_chat($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			string(r.Owner.Tenant), r.ID, string(r.Owner.Project), r.Model, string(r.Metadata), messages, object, r.CreatedAt, expires)
	}, nil
}

// readable is the condition under which an owner may see a completion, for the
// parameters $1 tenant and $2 project.
const readableChat = `tenant_id = $1 AND project_id = $2 AND (expires_at IS NULL OR expires_at > now())`

// Chat finds a kept completion, as its caller saw it, with its metadata.
func (p *Postgres) Chat(ctx context.Context, o Owner, id string) (object []byte, err error) {
	err = p.within(ctx, o, "load chat "+id, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		var box, metadata []byte
		err := tx.QueryRow(ctx, `SELECT object, metadata FROM chat_completions WHERE `+readableChat+` AND id = $3`,
			o.Tenant, o.Project, id).Scan(&box, &metadata)
		if err != nil {
			return err
		}
		object, err = openChat(keys, id, box, metadata)
		return err
	})
	return object, err
}

func openChat(keys *tenants.DataKeys, id string, box, metadata []byte) ([]byte, error) {
	object, err := keys.Open(box, aboutChat+id)
	if err != nil || len(object) == 0 {
		return nil, err
	}
	return end(member(object[:len(object)-1], "metadata", string(metadata))), nil
}

// ChatFilter says which completions a list shall have. Empty members filter
// nothing.
type ChatFilter struct {
	Model    string
	Metadata map[string]string // of which all have to be there
}

// Chats lists completions by their age, a page of them, and says whether more
// follow. A cursor that isn't there is a *Problem.
func (p *Postgres) Chats(ctx context.Context, o Owner, f ChatFilter, page Page) (list []byte, err error) {
	metadata, err := json.Marshal(f.Metadata)
	if err != nil {
		return nil, err
	}
	if len(f.Metadata) == 0 {
		metadata = []byte("{}")
	}
	limit := page.Limit
	if limit == 0 {
		limit = defaultPage
	}
	order, beyond := "DESC", "<"
	if page.Asc {
		order, beyond = "ASC", ">"
	}
	var items []Item
	err = p.within(ctx, o, "list chats", func(tx pgx.Tx, keys *tenants.DataKeys) error {
		var after *time.Time
		if page.After != "" {
			err := tx.QueryRow(ctx, `SELECT created_at FROM chat_completions WHERE `+readableChat+` AND id = $3`, o.Tenant, o.Project, page.After).Scan(&after)
			if err != nil {
				if errors.Is(err, pgx.ErrNoRows) {
					return noCursor(page.After)
				}
				return err
			}
		}
		rows, err := tx.Query(ctx, `
			SELECT id, object, metadata
			  FROM chat_completions
			 WHERE `+readableChat+` AND ($3 = '' OR model = $3) AND metadata @> $4::jsonb
			   AND ($5::timestamptz IS NULL OR (created_at, id) `+beyond+` ($5, $6))
			 ORDER BY created_at `+order+`, id `+order+`
			 LIMIT $7`, o.Tenant, o.Project, f.Model, string(metadata), after, page.After, limit+1)
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (it Item, err error) {
			var box, metadata []byte
			if err := row.Scan(&it.ID, &box, &metadata); err != nil {
				return it, err
			}
			it.JSON, err = openChat(keys, it.ID, box, metadata)
			return it, err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return List(items[:min(limit, len(items))], len(items) > limit), nil
}

// LabelChat replaces a completion's metadata.
func (p *Postgres) LabelChat(ctx context.Context, o Owner, id string, metadata []byte) (object []byte, err error) {
	err = p.within(ctx, o, "change chat "+id, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		var box, stored []byte
		err := tx.QueryRow(ctx, `
			UPDATE chat_completions SET metadata = $4 WHERE `+readableChat+` AND id = $3
			RETURNING object, metadata`, o.Tenant, o.Project, id, string(metadata)).Scan(&box, &stored)
		if err != nil {
			return err
		}
		object, err = openChat(keys, id, box, stored)
		return err
	})
	return object, err
}

// DeleteChat deletes a completion.
func (p *Postgres) DeleteChat(ctx context.Context, o Owner, id string) error {
	return p.within(ctx, o, "delete chat "+id, func(tx pgx.Tx, _ *tenants.DataKeys) error {
		tag, err := tx.Exec(ctx, `DELETE FROM chat_completions WHERE `+readableChat+` AND id = $3`, o.Tenant, o.Project, id)
		if err == nil && tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return err
	})
}

// ChatMessages is what the model of a completion was given, oldest first. Each
// message has an id of its own.
func (p *Postgres) ChatMessages(ctx context.Context, o Owner, id string) (messages []Item, err error) {
	err = p.within(ctx, o, "load messages of "+id, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		var box []byte
		err := tx.QueryRow(ctx, `SELECT messages FROM chat_completions WHERE `+readableChat+` AND id = $3`,
			o.Tenant, o.Project, id).Scan(&box)
		if err != nil {
			return err
		}
		plain, err := keys.Open(box, aboutMessages+id)
		if err != nil {
			return err
		}
		gjson.ParseBytes(plain).ForEach(func(_, m gjson.Result) bool {
			messages = append(messages, keptMessage(id, len(messages), m))
			return true
		})
		return nil
	})
	return messages, err
}

// keptMessage is a message as a list shows it: its text, or else its parts.
func keptMessage(chat string, n int, m gjson.Result) Item {
	it := Item{ID: chat + "-" + string(appendInt(nil, n))}
	b := append([]byte(`{"id":`), quote(it.ID)...)
	content, parts := "null", "null"
	m.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str != "content":
			b = member(b, key.Str, value.Raw)
		case value.IsArray():
			parts = value.Raw
		default:
			content = value.Raw
		}
		return true
	})
	it.JSON = end(member(member(b, "content", content), "content_parts", parts))
	return it
}
