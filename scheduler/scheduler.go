// Package scheduler decides which waiting request goes next and to which model
// server. It knows flows, bands, weights and endpoints; it knows nothing of
// tenants, money or HTTP, and it performs no I/O: scheduler/pool watches the
// endpoints for it.
package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Scheduler gives out endpoints of one pool. Its implementations satisfy the
// contract test in scheduler/schedulertest.
type Scheduler interface {
	// Schedule waits in the request's flow until an endpoint may take it.
	// The error is a *Refusal. A cancelled ctx leaves the queue at once.
	Schedule(ctx context.Context, r Request) (Lease, error)
}

// Lease is the right to occupy one endpoint for one attempt of a request.
type Lease interface {
	// Targets lists where to send, in order of preference. Never empty.
	Targets() []Target
	// Body is what to send; a remote scheduler may have changed it. It may be
	// gone once HeadersReceived was observed.
	Body() []byte
	// Evicted is closed when the scheduler takes the endpoint back.
	Evicted() <-chan struct{}
	// Observe reports how the attempt goes on. It does not block.
	Observe(p Progress)
	// End gives the endpoint back. The first call counts, later ones do nothing.
	End(o Outcome)
}

// Flow names the queue in which a request waits: one fairness ID in one band.
type Flow struct {
	FairnessID string
	Band       int // priority; a higher number goes first
}

// Request is what a scheduler needs to know of one attempt.
type Request struct {
	ID     string // "<request id>.<attempt>", unique among live requests
	Flow   Flow
	Weight int // share of the flow among the flows of its band; 0 counts as 1

	Session   string   // the chain that the request belongs to, unique over all tenants; "" when none
	Turn      int      // which turn of the session this is, from 1; 0 when unknown
	Affinity  string   // hint that requests with the same one share a prefix, unique over all tenants; "" when none
	Model     string   // name at the engine; with CacheSalt the seed of the prefix hash
	CacheSalt string   // only requests with the same salt can hit each other's prefix
	Path      string   // where at the engine it goes; "" is a chat
	Body      []byte   // the JSON that will be sent
	Prompt    [][]byte // what the engine's prefix cache sees, in the order in which its template puts it (tools, then messages); not kept

	InputTokens  int // estimate of the whole prompt
	OutputTokens int // upper bound; 0 when unknown

	QueuedAt time.Time     // when the first attempt began to wait; non-zero puts a retry at the head of its flow
	TTFT     time.Duration // wanted time to first token, counted from QueuedAt; 0: none
	Reserved int           // tokens of the pool that the flow is guaranteed at once while it wants them; 0: none
	TTL      time.Duration // shortens the pool's own time limit in the queue; 0 leaves it, a negative one means not to wait
	Streams  bool          // the first token will be told when it comes, and not with the end
	Exclude  []string      // endpoints that this request should avoid, if others can take it
	Revision string        // the only revision whose endpoints may take it, where a pool goes by revisions; "": any

	// Tokens is the prompt as the engine's own tokenizer makes it, where that is
	// known and the pool follows its endpoints' caches (Profile.Precise); else nil.
	Tokens *TokenChain

	chain *chain // of Prompt
}

// EnginePath is Path, or that of a chat.
func (r *Request) EnginePath() string { return cmp.Or(r.Path, "/v1/chat/completions") }

// Target is one place to send a request to.
type Target struct {
	Endpoint string      // id of the endpoint in its pool
	URL      string      // base URL, without a trailing slash or /v1
	Headers  [][2]string // to add to the request
	Prefill  *Target     // another endpoint that is to compute the prompt for this one; nil: none
}

// Progress is a report on a running attempt.
type Progress struct {
	Kind         ProgressKind
	Status       int    // of the endpoint's answer, with HeadersReceived; 0 when unknown
	OutputTokens int    // so far, where known
	Event        []byte // the data of a whole SSE event, or a JSON body, for schedulers that read it; not kept
}

// ProgressKind says what happened.
type ProgressKind int

// What a running attempt reports.
const (
	HeadersReceived ProgressKind = iota
	FirstToken
	EventReceived
)

// Outcome is how an attempt ended.
type Outcome struct {
	Result       Result
	InputTokens  int // uncached prompt tokens, where known
	CachedTokens int
	OutputTokens int
	// Reached says of an EndpointFault that the target itself took the request,
	// and then answered with a failure or not in time: where another endpoint was
	// to compute the prompt, that one may be at fault.
	Reached bool
}

// Result classes an outcome by whose doing it was.
type Result int

// The results of an attempt.
const (
	Completed     Result = iota
	EndpointFault        // the endpoint failed: counts against its health
	CallerFault          // the caller's request was wrong (4xx): says nothing of the endpoint
	Abandoned            // the caller left or a time limit of ours ended it
	Overloaded           // the endpoint said 429 or 503: it lives, but is full
)

// Reason is why a request was refused.
type Reason string

// The reasons of a refusal.
const (
	FlowFull     Reason = "flow_full"     // the flow's own cap
	BandFull     Reason = "band_full"     // the band's cap
	PoolFull     Reason = "pool_full"     // the pool's cap
	QueueTimeout Reason = "queue_timeout" // waited for its whole time limit
	NoEndpoints  Reason = "no_endpoints"  // the pool had no endpoint to wait for
	ShedLoad     Reason = "shed"          // a negative band, refused by chance before the pool is full
	Cancelled    Reason = "cancelled"     // the caller's context ended
	ShuttingDown Reason = "shutting_down"
	Internal     Reason = "internal"
)

// Refusal is the error of Schedule.
type Refusal struct { //nolint:errname // the word of the design
	Reason     Reason
	RetryAfter time.Duration // when a new try may succeed; 0 when unknown
	Waited     bool          // it was in the queue first
	Err        error         // the cause, for the operator; may be nil
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("schedule: %s: %v", r.Reason, r.Err)
	}
	return "schedule: " + string(r.Reason)
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }
