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

// Node is one thing that has limits: a key, a project, a tenant, a tenant's use
// of a model. Its ID is ours ("key_...", "ten_..."), never a caller's string.
// Zero limits don't bind.
type Node struct {
	ID          string
	PerMinute   Counts
	Concurrency int

	// Rise is how much of the limits holds now, in percent; 0 is 100. It only
	// raises: what a verdict tells of rates stays what PerMinute guarantees.
	Rise int
}

// Request is what asks for admission. A store does not change it.
type Request struct {
	ID       string // ours, and unique for ever
	Tenant   string // whose it is: a shared store keeps what is one tenant's in one place
	Nodes    []Node // distinct, at most MaxNodes
	Estimate Counts // one request, and the tokens that it may take
	Intent   *Intent
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
// holds nothing. Both are given the same request. After an error or a refusal
// the request holds nothing.
type Store interface {
	// Admit charges the request and its estimate, and keeps its intent. One
	// whose estimate is above a limit altogether is admitted when nothing of
	// that limit is spent, and leaves a debt.
	Admit(ctx context.Context, r *Request) (Verdict, error)
	// Release frees the slots of a request, replaces its estimate by what it
	// used and forgets its intent; one that it is not given stays. It does so
	// once. The request itself stays counted.
	Release(ctx context.Context, r *Request, used Counts) error
	// Look tells how nodes of a tenant stand, any number of them, and changes
	// nothing.
	Look(ctx context.Context, tenant string, nodes []Node) ([]Standing, error)
}

// Standing is how one node stands.
type Standing struct {
	Rates [meters]Allowance // by Meter; a Limit of 0 is none
	Live  int               // requests that hold a slot; 0 where the node has no limits
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

// rates are the limits a minute that hold now.
func (n *Node) rates() [meters]int {
	all := n.PerMinute.all()
	if n.Rise > 100 {
		for m, limit := range all {
			all[m] = raised(limit, n.Rise)
		}
	}
	return all
}

// slots is the limit of live requests that holds now.
func (n *Node) slots() int {
	if n.Rise > 100 {
		return raised(n.Concurrency, n.Rise)
	}
	return n.Concurrency
}

func raised(limit, percent int) int { return int(int64(limit) * int64(percent) / 100) }

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
