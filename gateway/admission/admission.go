// Package admission counts requests per minute and concurrency slots. One
// small interface has two forms, in process and in Redis, and one contract
// suite (admissiontest) that both pass.
package admission

import (
	"context"
	"time"
)

// Node is one thing that has limits: a key, a tenant. Its ID is ours
// ("key_...", "ten_..."), never a caller's string. Zero limits don't bind.
type Node struct {
	ID                string
	RequestsPerMinute int
	Concurrency       int
}

// Verdict is the answer to a request for admission: all nodes or none.
type Verdict struct {
	Admitted bool
	Node     string        // which node refused, or binds most closely
	Slots    bool          // refused for concurrency, else for the rate
	Limit    int           // of the binding node; 0 when no rate limit applies
	Left     int           // requests that may still come now
	Reset    time.Duration // until the whole allowance is back
	Retry    time.Duration // when refused: until one more fits
}

// Store admits requests. It is safe for concurrent use. Admit is idempotent by
// request id, and Release may be called for an id that holds nothing.
type Store interface {
	Admit(ctx context.Context, requestID string, nodes []Node) (Verdict, error)
	// Release frees the slots of a request.
	Release(ctx context.Context, requestID string, nodes []Node) error
}
