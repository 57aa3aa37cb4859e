// Package gateway runs one exchange: resolve the model, admit, schedule,
// forward and settle. It knows engines, limits and receipts; what the caller's
// wire looks like is api's business.
package gateway

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Operation is which inference API a call uses.
type Operation string

// The operations that engines serve.
const (
	Chat        Operation = "chat"
	Completions Operation = "completions"
	Embeddings  Operation = "embeddings"
	// Responses is a chat at an engine's own /v1/responses, always streamed. Its
	// events come to the sink as the engine's, without those before the first
	// item, and end with the [DONE] of all streams.
	Responses Operation = "responses"
)

// Path is the operation's path at an engine.
func (o Operation) Path() string {
	switch o {
	case Completions:
		return "/v1/completions"
	case Embeddings:
		return "/v1/embeddings"
	case Responses:
		return "/v1/responses"
	default:
		return "/v1/chat/completions"
	}
}

// sold is what the catalogue calls the operation.
func (o Operation) sold() string {
	if o == Responses {
		return string(Chat)
	}
	return string(o)
}

// Call is one inference request as the API understood it. Everything in it was
// checked; Fields holds no member that this package sets itself.
type Call struct {
	ID              string // req_..., ours
	ClientRequestID string // what the caller calls it; never used as a key
	Response        string // the background response that it makes, resp_...; "" where it makes none
	Principal       *tenants.Principal
	Operation       Operation
	Model           string // as the caller named it: a public name or an alias
	Fields          []byte // members of the engine's JSON body, without the braces; no model, stream, stream_options, cache_salt, priority
	Stream          bool
	IncludeUsage    bool          // the caller asked for the closing usage chunk
	Tier            tenants.Tier  // asked for; "" is default
	MaxTokens       int           // bound on the output of one choice; 0 when the caller set none
	Choices         int           // n; at least 1
	QueueTTL        time.Duration // from x-weir-queue-ttl; 0 when absent
	ReceivedAt      time.Time

	// Prompt is the part of Fields that becomes the prompt, in the order in
	// which a chat template puts it: the tools, then the messages (or the prompt
	// or input). It shares Fields' memory.
	Prompt [2][]byte
	// MediaBytes is how many bytes of Fields are media: data: URLs and the like,
	// which are no text and say nothing of how many tokens they become.
	MediaBytes int
	// Session names the chain that the call continues, within its tenant, and
	// Turn says which of its turns this is, from 1. Both come from our own
	// records; "" and 0 when there is none.
	Session string
	Turn    int
	// Affinity is the caller's hint that calls with the same one share a prefix
	// (prompt_cache_key), within its tenant; "" when none.
	Affinity string

	// Effect is called once for an exchange that was given a lease, before its
	// receipt is stored: nil on success, else why it failed. The statements that
	// it returns run in the receipt's transaction. Its error fails a success as
	// StoreDown. Nil is none.
	Effect func(ctx context.Context, failure *Error) (func(*pgx.Batch), error)

	// Ended is called once for an answer that the engine ended, before Effect:
	// with the JSON document as the caller will see it, nil for a stream, and
	// with what the engine counted, in its own form. It does not keep them. Nil
	// is fine.
	Ended func(document, usage []byte)

	// Alloc gives n bytes that are the gateway's until it calls Sent or Run has
	// returned: what is sent to the engine, as large as Fields. Nil makes them.
	Alloc func(n int) []byte

	// Sent is called when Fields, Prompt and what Alloc gave are not needed any
	// more, at the latest with the first bytes of a stream: one that goes on for minutes need
	// not keep its prompt. It may never be called; nil is fine.
	Sent func()
}

// Head is what is known when an answer begins. The API turns it into headers.
type Head struct {
	Stream    bool          // an event stream, else one JSON document
	QueueTime time.Duration // spent in the scheduler's queue
	Band      string
	Tier      tenants.Tier // served
	Limit     LimitState
	Shutdown  *time.Time // from when on the model will be gone; nil: not set
}

// LimitState is what the caller may still do, for x-ratelimit-* headers.
// A zero limit means that none applies.
type LimitState struct {
	Requests          int // per minute
	RemainingRequests int
	ResetRequests     time.Duration // until the full allowance is back

	Tokens          int // per minute, of the token limit that binds most closely
	RemainingTokens int
	ResetTokens     time.Duration
}

// Sink takes an answer. Its methods are called by one goroutine at a time:
// Begin once, then Send, then nothing or one Fail. An error from Begin or Send
// means that the caller has left. No method may block for ever: a caller that
// stops reading would keep an endpoint occupied, so an implementation gives
// each write a deadline.
//
// ctx is the exchange's. It may have ended: who left is sent the end of an answer
// that was made all the same.
type Sink interface {
	// Begin commits to success (status 200).
	Begin(ctx context.Context, h Head) error
	// Send writes whole events, or the JSON document, and flushes. It does not keep p.
	Send(ctx context.Context, p []byte) error
	// Fail tells a caller to whom Begin was already sent that the answer
	// broke off: an error event on a stream.
	Fail(ctx context.Context, err error)
}
