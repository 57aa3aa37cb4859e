package responses

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/tenants"
)

// Conversation is a list of items that grows with every response in it. It
// doesn't expire.
type Conversation struct {
	ID        string
	CreatedAt time.Time
	Metadata  []byte // a JSON object
}

// JSON is the conversation on the wire.
func (c *Conversation) JSON() []byte {
	b := append([]byte(`{"id":`), quote(c.ID)...)
	b = append(b, `,"object":"conversation","created_at":`...)
	b = appendInt(b, int(c.CreatedAt.Unix()))
	return end(member(b, "metadata", string(c.Metadata)))
}

// maxSaid is how many items one call may add to a conversation.
const maxSaid = 20

// ParseConversation reads the body of a call that makes a conversation, changes
// its metadata or adds items. The error is a *Problem.
func ParseConversation(body []byte) (metadata []byte, items []Item, err error) {
	v := gjson.ParseBytes(body)
	if len(body) > 0 && !v.IsObject() {
		return nil, nil, problem("", "", "The body must be a JSON object.")
	}
	m := membersOf(v)
	if err := checkMetadata(m["metadata"]); err != nil {
		return nil, nil, err
	}
	metadata = []byte(rawOr(m["metadata"], "{}"))
	if given := m["items"]; !absent(given) {
		if !given.IsArray() {
			return nil, nil, wrongType("items", "an array")
		}
		if items, err = ParseInput("items", given); err != nil {
			return nil, nil, err
		}
	}
	if len(items) > maxSaid {
		return nil, nil, problem("items", "array_above_max_length", "Invalid 'items': at most %d can be added at a time.", maxSaid)
	}
	for i, it := range items {
		if it.Type == typeReference {
			return nil, nil, problem(fmt.Sprintf("items[%d].type", i), codeValue, "An item of a conversation is given itself, not by its id.")
		}
	}
	return metadata, items, nil
}

const aboutConversation = "conversation|"

// Converse makes a conversation that begins with items.
func (p *Postgres) Converse(ctx context.Context, o Owner, metadata []byte, items []Item) (*Conversation, error) {
	c := &Conversation{ID: newID(conversationPrefix), CreatedAt: p.now(), Metadata: metadata}
	err := p.within(ctx, o, "make a conversation", func(tx pgx.Tx, keys *tenants.DataKeys) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO conversations (tenant_id, id, project_id, metadata, created_at)
			VALUES ($1, $2, $3, $4, $5)`,
			o.Tenant, c.ID, o.Project, keys.Seal(metadata, aboutConversation+c.ID), c.CreatedAt)
		if err != nil {
			return err
		}
		return say(ctx, tx, keys, o, c.ID, items)
	})
	return c, err
}

// say adds items to a conversation whose row the transaction has locked.
func say(ctx context.Context, tx pgx.Tx, keys *tenants.DataKeys, o Owner, id string, items []Item) error {
	if len(items) == 0 {
		return nil
	}
	s := sealItems(keys, items, nil)
	_, err := tx.Exec(ctx, `
		INSERT INTO conversation_items (tenant_id, conversation_id, position, item_id, kind, content)
		SELECT $1, $2, i.ord + (SELECT coalesce(max(position), 0) FROM conversation_items
		                         WHERE tenant_id = $1 AND conversation_id = $2),
		       i.item_id, i.kind, i.content
		  FROM unnest($3::text[], $4::text[], $5::bytea[]) WITH ORDINALITY AS i (item_id, kind, content, ord)`,
		o.Tenant, id, s.ids, s.kinds, s.contents)
	return err
}

// lock reads a conversation and keeps others from changing it.
func lock(ctx context.Context, tx pgx.Tx, keys *tenants.DataKeys, o Owner, id, how string) (*Conversation, error) {
	c := &Conversation{ID: id}
	var box []byte
	err := tx.QueryRow(ctx, `
		SELECT created_at, metadata FROM conversations
		 WHERE tenant_id = $1 AND id = $2 AND project_id = $3 `+how, o.Tenant, id, o.Project).Scan(&c.CreatedAt, &box)
	if err != nil {
		return nil, err
	}
	c.Metadata, err = keys.Open(box, aboutConversation+id)
	return c, err
}

// Conversation finds a conversation.
func (p *Postgres) Conversation(ctx context.Context, o Owner, id string) (c *Conversation, err error) {
	err = p.within(ctx, o, "load conversation "+id, func(tx pgx.Tx, keys *tenants.DataKeys) (err error) {
		c, err = lock(ctx, tx, keys, o, id, "")
		return err
	})
	return c, err
}

// Rename replaces a conversation's metadata.
func (p *Postgres) Rename(ctx context.Context, o Owner, id string, metadata []byte) (c *Conversation, err error) {
	err = p.within(ctx, o, "change conversation "+id, func(tx pgx.Tx, keys *tenants.DataKeys) (err error) {
		if c, err = lock(ctx, tx, keys, o, id, "FOR UPDATE"); err != nil {
			return err
		}
		c.Metadata = metadata
		_, err = tx.Exec(ctx, `
			UPDATE conversations SET metadata = $3 WHERE tenant_id = $1 AND id = $2`,
			o.Tenant, id, keys.Seal(metadata, aboutConversation+id))
		return err
	})
	return c, err
}

// Forget deletes a conversation and its items.
func (p *Postgres) Forget(ctx context.Context, o Owner, id string) error {
	return p.within(ctx, o, "delete conversation "+id, func(tx pgx.Tx, _ *tenants.DataKeys) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM conversations WHERE tenant_id = $1 AND id = $2 AND project_id = $3`, o.Tenant, id, o.Project)
		if err == nil && tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return err
	})
}

// Say adds items to a conversation.
func (p *Postgres) Say(ctx context.Context, o Owner, id string, items []Item) error {
	return p.within(ctx, o, "add to conversation "+id, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		if _, err := lock(ctx, tx, keys, o, id, "FOR UPDATE"); err != nil {
			return err
		}
		return say(ctx, tx, keys, o, id, items)
	})
}

// Said finds one item of a conversation.
func (p *Postgres) Said(ctx context.Context, o Owner, id, item string) (it Item, err error) {
	err = p.within(ctx, o, "load item "+item, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		var kind string
		var box []byte
		err := tx.QueryRow(ctx, `
			SELECT i.kind, i.content
			  FROM conversation_items i
			  JOIN conversations c ON c.tenant_id = $1 AND c.id = i.conversation_id
			 WHERE i.tenant_id = $1 AND i.conversation_id = $2 AND i.item_id = $3 AND c.project_id = $4
			 ORDER BY i.position DESC
			 LIMIT 1`, o.Tenant, id, item, o.Project).Scan(&kind, &box)
		if err != nil {
			return err
		}
		it, err = openItem(keys, item, kind, box)
		return err
	})
	return it, err
}

// Unsay takes an item out of a conversation, which it returns.
func (p *Postgres) Unsay(ctx context.Context, o Owner, id, item string) (c *Conversation, err error) {
	err = p.within(ctx, o, "delete item "+item, func(tx pgx.Tx, keys *tenants.DataKeys) (err error) {
		if c, err = lock(ctx, tx, keys, o, id, "FOR UPDATE"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			DELETE FROM conversation_items WHERE tenant_id = $1 AND conversation_id = $2 AND item_id = $3`, o.Tenant, id, item)
		if err == nil && tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return err
	})
	return c, err
}
