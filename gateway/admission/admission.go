// Package admission counts requests and tokens per minute, and concurrency
// slots. One small interface has two forms, in process and in Redis, and one
// contract suite (admissiontest) that both pass.
//
// Rates are GCRA: a node may spend its whole allowance of a minute at once and
// gets it back evenly. Tokens are spent by an estimate and corrected when they
// are known; what was too little is a debt, which later requests wait for.
// Slots are the size of the set of live requests, never a counter, and each
// entry expires by itself if its holder dies.
package admission

import (
	"context"
	"errors"
	"time"
)

// Counts is so many of each thing that a rate counts: a limit of so many a
// minute, or what a request costs. As a limit, zero doesn't bind.
type Counts struct {
	Requests  int
	Tokens    int // prompt that is not cached, and output
	Uncached  int // prompt that is not cached
	Generated int // output
}

// Node is one thing that has limits: a key, a tenant. Its ID is ours
// ("key_...", "ten_..."), never a caller's string. Zero limits don't bind.
// A call that names a key's node always names its tenant's node too: together
// they decide where a shared store keeps them.
type Node struct {
	ID          string
	PerMinute   Counts
	Concurrency int
}

// Meter is one of the rates of a node.
type Meter int

// The meters, in the order of Counts.
const (
	RequestMeter Meter = iota
	TokenMeter
	UncachedMeter
	GeneratedMeter
	meters = 4
)

func (c Counts) all() [meters]int { return [meters]int{c.Requests, c.Tokens, c.Uncached, c.Generated} }

// Allowance is what may still be spent of the limit that binds most closely.
type Allowance struct {
	Limit int           // a minute; 0: none applies
	Left  int           // that may be spent now
	Reset time.Duration // until the whole allowance is back
}

// Verdict is the answer to a request for admission: all nodes or none.
type Verdict struct {
	Admitted bool
	Node     string        // which node refused
	Slots    bool          // refused for concurrency, else for the rate of Meter
	Meter    Meter         // which rate refused
	Retry    time.Duration // when refused: until one more fits; a guess of one second for slots

	Requests Allowance
	Tokens   Allowance // of the token meter that binds most closely
}

// Store admits requests. It is safe for concurrent use. Admit is idempotent by
// request id while the request lives, and Release may be called for an id that
// holds nothing. The nodes of one call are distinct, at most MaxNodes, and the
// same in Admit and Release. After an error or a refusal the request holds
// nothing.
type Store interface {
	// Admit charges one request and an estimate of its tokens. One whose
	// estimate is above a limit altogether is admitted when nothing of that
	// limit is spent, and leaves a debt.
	Admit(ctx context.Context, requestID string, nodes []Node, estimate Counts) (Verdict, error)
	// Release frees the slots of a request and replaces its estimate, the same
	// as in Admit, by what it used. It does so once. The request itself stays
	// counted.
	Release(ctx context.Context, requestID string, nodes []Node, estimate, used Counts) error
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

// limits reports whether the node has a limit.
func (n *Node) limits() bool { return n.PerMinute != Counts{} || n.Concurrency > 0 }

// limited returns the nodes that have a limit: the others cost nothing.
func limited(nodes []Node) ([]Node, error) {
	n := 0
	for i := range nodes {
		if nodes[i].limits() {
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
	for i := range nodes {
		if nodes[i].limits() {
			out = append(out, nodes[i])
		}
	}
	return out, nil
}
