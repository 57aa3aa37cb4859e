package gateway

import (
	"fmt"
	"time"
)

// Cause is why an exchange ended. "completed" is the only success. The other
// half of this table, cause -> status, type and headers, is api/errors.go.
type Cause string

// The causes, in the order in which an exchange can meet them.
const (
	Success Cause = "completed"

	ModelNotFound     Cause = "model_not_found"            // no such public model, or not for this key
	WrongOperation    Cause = "wrong_operation"            // the model exists but doesn't serve this API
	NotCounted        Cause = "not_counted"                // the model's engine has no tokenizer to ask
	PlaceForbidden    Cause = "place_forbidden"            // the plan allows none of the model's pools: region, isolation
	SuspectRequest    Cause = "suspect_request"            // the same body took an endpoint down a short while ago
	Unpriced          Cause = "model_unpriced"             // billing is enforced, and nobody knows what it costs
	InsufficientQuota Cause = "insufficient_quota"         // a wallet doesn't have the money
	MoneyHeld         Cause = "in_flight_budget_exhausted" // a wallet has it, but exchanges under way hold it
	MoneyUnknown      Cause = "billing_unavailable"        // wallets can't be asked, and what is here doesn't suffice
	RateLimited       Cause = "rate_limited"               // requests per minute
	TokenRateLimited  Cause = "token_rate_limited"         // tokens per minute
	TooManyAtOnce     Cause = "concurrency_limit"          // concurrency slots
	LimitsUnknown     Cause = "limits_unavailable"
	FlowFull          Cause = "flow_full"
	BandFull          Cause = "band_full"
	PoolFull          Cause = "pool_full"
	Shed              Cause = "shed" // a low band, before the pool was full
	QueueTimeout      Cause = "queue_timeout"
	NoEndpoint        Cause = "no_endpoint"
	ShuttingDown      Cause = "shutting_down"
	ConnectFailed     Cause = "connect_failed"    // nothing was sent
	UpstreamReset     Cause = "upstream_reset"    // sent, but no byte of an answer came
	UpstreamStatus    Cause = "upstream_error"    // 5xx
	UpstreamBusy      Cause = "upstream_busy"     // 429 or 503
	UpstreamRefused   Cause = "upstream_rejected" // 400, 404, 413, 422: the caller's request
	ContextTooLong    Cause = "context_length_exceeded"
	UpstreamInvalid   Cause = "upstream_invalid"   // not the protocol
	FirstByteLimit    Cause = "first_byte_timeout" // time limits of the model
	IdleLimit         Cause = "idle_timeout"
	TotalLimit        Cause = "total_timeout"
	UpstreamDied      Cause = "upstream_died" // after the first byte to the caller
	Evicted           Cause = "evicted"
	BudgetExhausted   Cause = "budget_exhausted" // a stream was ended where the money was
	KeyRevoked        Cause = "key_revoked"      // while the answer ran
	AccessLost        Cause = "access_lost"      // the key lost the model or the operation meanwhile
	ClientGone        Cause = "client_gone"
	StoreDown         Cause = "store_unavailable" // the receipt could not be stored
	Internal          Cause = "internal"
)

// Error is how Run reports an exchange that did not succeed.
type Error struct {
	Cause      Cause
	Message    string        // for the caller; empty: api has the cause's own sentence
	Param      string        // the caller's field at fault, if one is
	RetryAfter time.Duration // 0 when unknown
	Limit      LimitState    // for rate limits
	Band       string        // in which the exchange waited; empty: it never came that far
	QueueTime  time.Duration // spent in the scheduler's queue
	Err        error         // for the operator, never shown
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Cause, e.Err)
	}
	return string(e.Cause)
}

// Unwrap returns the operator's cause.
func (e *Error) Unwrap() error { return e.Err }

// Effect says what a cause means to the rest of the exchange.
type Effect struct {
	Retryable bool // another endpoint may be tried, if no byte went to the caller
	Blames    bool // counts against the endpoint's health
	Billable  bool // the tenant pays for what was used so far
}
