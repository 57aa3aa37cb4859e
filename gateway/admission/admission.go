// Package admission counts requests per minute and concurrency slots. One
// small interface has two forms, in process and in Redis, and one contract
// suite (admissiontest) that both pass.
//
// Rates are GCRA: a node may spend its whole allowance of a minute at once and
// gets it back evenly. Slots are the size of the set of live requests, never a
// counter, and each entry expires by itself if its holder dies.
package admission

import (
	"context"
	"errors"
	"time"
)

// Node is one thing that has limits: a key, a tenant. Its ID is ours
// ("key_...", "ten_..."), never a caller's string. Zero limits don't bind.
// A call that names a key's node always names its tenant's node too: together
// they decide where a shared store keeps them.
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
	Retry    time.Duration // when refused: until one more fits; a guess of one second for slots
}

// Store admits requests. It is safe for concurrent use. Admit is idempotent by
// request id while the request lives, and Release may be called for an id that
// holds nothing. The nodes of one call are distinct, at most MaxNodes, and the
// same in Admit and Release. After an error or a refusal the request holds
// nothing.
type Store interface {
	Admit(ctx context.Context, requestID string, nodes []Node) (Verdict, error)
	// Release frees the slots of a request.
	Release(ctx context.Context, requestID string, nodes []Node) error
}

// MaxNodes is how many nodes one call may name.
const MaxNodes = 8

// slotRetry is what a caller without a free slot is told to wait: nobody can
// know when one of its own requests ends.
const slotRetry = time.Second

// Errors of a store.
var (
	// ErrFull says that a store in process tracks as many live nodes as it may.
	ErrFull = errors.New("admission: too many nodes are live at once")
	// ErrNodes says that a call named more than MaxNodes nodes.
	ErrNodes = errors.New("admission: too many nodes in one call")
)

// limited returns the nodes that have a limit: the others cost nothing.
func limited(nodes []Node) ([]Node, error) {
	n := 0
	for _, node := range nodes {
		if node.RequestsPerMinute > 0 || node.Concurrency > 0 {
			n++
		}
	}
	if n > MaxNodes {
		return nil, ErrNodes
	}
	if n == len(nodes) {
		return nodes, nil
	}
	out := make([]Node, 0, n)
	for _, node := range nodes {
		if node.RequestsPerMinute > 0 || node.Concurrency > 0 {
			out = append(out, node)
		}
	}
	return out, nil
}
