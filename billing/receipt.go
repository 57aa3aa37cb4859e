// Package billing meters: price book, receipts and the settle writer that
// stores a receipt durably before the caller sees the end of an answer.
package billing

import "time"

// Usage is what an exchange used, in disjoint classes of tokens: their sum is
// the total. (The wire's prompt_tokens includes cached ones and its
// completion_tokens includes reasoning; whoever reads the wire splits them.)
type Usage struct {
	InputUncached int64
	InputCached   int64
	Output        int64 // visible output, without reasoning
	Reasoning     int64
}

// UsageSource says where a receipt's usage comes from.
type UsageSource string

// Sources of usage, best first.
const (
	UpstreamFinal   UsageSource = "upstream_final"   // the engine's closing count
	UpstreamPartial UsageSource = "upstream_partial" // the engine's running count when the exchange was cut
	GatewayCount    UsageSource = "gateway_count"    // our own count of events and an estimate of the prompt
	NoUsage         UsageSource = "none"             // nothing reached an engine
)

// Receipt is the append-only record of what one exchange used and cost. It is
// written once; RequestID is unique for ever.
type Receipt struct {
	RequestID       string
	ClientRequestID string // as the caller named it, for their search; may be empty
	Tenant          string
	Project         string
	Key             string

	Operation string // chat, completions, embeddings
	Model     string // public name
	Pool      string
	Endpoint  string // last endpoint tried; empty when none
	Attempts  int
	Stream    bool

	Band     string
	Priority int
	Tier     string // served

	Usage        Usage
	UsageSource  UsageSource
	PriceVersion int64 // 0: the model had no price
	CostNano     int64 // nano-USD, rounded once

	StartedAt time.Time
	QueueTime time.Duration // in the scheduler's queue, all attempts
	TTFT      time.Duration // from StartedAt to the first output; 0 when none came
	Duration  time.Duration

	Outcome string // "completed" or the cause that ended it (gateway.Cause)
}
