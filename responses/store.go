package responses

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// ErrNotFound means that there is no such response, conversation or item for
// this owner: never made, expired, deleted, or another's, which all look alike.
var ErrNotFound = errors.New("responses: not found")

// Owner is whose a thing is. Every look-up names it.
type Owner struct {
	Tenant  tenants.ID
	Project tenants.ProjectID
}

// History is what a response goes on from: the items of the chain or the
// conversation, oldest first.
type History struct {
	Root   string // of the chain, or the conversation: the scheduler's session
	Turn   int    // of the response that comes next, from 1
	Status string // of the response that it goes on from
	Items  []Item
}

// Record is a response as it is kept.
type Record struct {
	ID           string
	Owner        Owner
	Key          tenants.KeyID
	Previous     string
	Conversation string
	Root         string
	Turn         int
	Status       string
	Model        string
	Background   bool
	Streamed     bool
	CreatedAt    time.Time
	ExpiresAt    time.Time // zero: never
	Object       []byte    // the whole response object, without its output's items where Output has them
	Input        []Item    // the request's own, not what it goes on from
	Output       []Item
}

// Store keeps responses. It is safe for concurrent use.
type Store interface {
	ChatStore
	// History loads what a request goes on from that names a response. The
	// error is ErrNotFound where there is none that may be gone on from.
	History(ctx context.Context, o Owner, response string) (*History, error)
	// Talk is History for a conversation.
	Talk(ctx context.Context, o Owner, conversation string) (*History, error)
	// Item finds one item of a kept response or conversation.
	Item(ctx context.Context, o Owner, id string) (Item, error)
	// Save returns the statements that keep a finished response, for the
	// transaction of its receipt. Content is sealed before it returns.
	Save(ctx context.Context, r *Record) (func(*pgx.Batch), error)
}
