// Package billing meters: price book, receipts and the settle writer that
// stores a receipt durably before the caller sees the end of an answer.
package billing

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Receipt is the append-only record of what one exchange used and cost. It is
// written once; RequestID is unique for ever. Times are stored to the
// microsecond.
type Receipt struct {
	RequestID       string `json:"request_id"`
	ClientRequestID string `json:"client_request_id,omitempty"` // as the caller named it, for their search; may be empty
	Tenant          string `json:"tenant"`
	Project         string `json:"project"`
	Key             string `json:"key"`

	Operation string `json:"operation"` // chat, completions, embeddings, responses
	Model     string `json:"model"`     // public name
	Pool      string `json:"pool"`
	Endpoint  string `json:"endpoint"` // last endpoint tried; empty when none
	Attempts  int    `json:"attempts"`
	Stream    bool   `json:"stream"`

	Band     string `json:"band"`
	Priority int    `json:"priority"`
	Tier     string `json:"tier"` // served

	Usage        Usage       `json:"usage"`
	UsageSource  UsageSource `json:"usage_source"`
	CachedTiers  *CacheTiers `json:"cached_tiers,omitempty"` // parts of the cached input; nil: the engine didn't say
	PriceVersion int64       `json:"price_version"`          // 0: the model had no price
	CostNano     int64       `json:"cost_nano"`              // nano-USD, rounded once

	StartedAt time.Time     `json:"started_at"`
	QueueTime time.Duration `json:"queue_time"` // in the scheduler's queue, all attempts
	TTFT      time.Duration `json:"ttft"`       // from StartedAt to the first output; 0 when none came
	Duration  time.Duration `json:"duration"`

	Outcome string `json:"outcome"` // "completed" or the cause that ended it (gateway.Cause)

	SavedNano int64   `json:"saved_nano,omitempty"` // what the prefix cache saved the caller
	Mode      Mode    `json:"mode,omitempty"`       // of billing when it was admitted; empty: ModeOff
	SettledBy string  `json:"settled_by,omitempty"` // empty: ByGateway
	Chunks    []int64 `json:"chunks,omitempty"`     // that its hold was drawn from; settling needs them, they aren't stored
}

// ErrReceipt marks a receipt that can't be stored as it is.
var ErrReceipt = errors.New("billing: invalid receipt")

// maxText bounds each text of a receipt, in bytes.
const maxText = 512

// Validate reports what keeps the receipt from being stored, as ErrReceipt. The
// table holds the same rules: a receipt that is valid here may be spooled,
// since Postgres will take it later.
func (r *Receipt) Validate() error {
	if r.RequestID == "" || r.Tenant == "" || r.Outcome == "" || r.StartedAt.IsZero() {
		return fmt.Errorf("%w: request id, tenant, outcome and start are needed", ErrReceipt)
	}
	for _, text := range [...]string{
		r.RequestID, r.ClientRequestID, r.Tenant, r.Project, r.Key, r.Operation, r.Model,
		r.Pool, r.Endpoint, r.Band, r.Tier, r.Outcome,
	} {
		if len(text) > maxText || !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
			return fmt.Errorf("%w %s: a text is too long or not plain UTF-8", ErrReceipt, r.RequestID)
		}
	}
	if err := cmp.Or(r.Usage.Validate(), r.CachedTiers.validate(r.Usage.InputCached)); err != nil {
		return fmt.Errorf("%w %s: %w", ErrReceipt, r.RequestID, err)
	}
	switch {
	case !r.UsageSource.valid():
		return fmt.Errorf("%w %s: usage source %q", ErrReceipt, r.RequestID, r.UsageSource)
	case !r.Mode.valid(), r.SettledBy != "" && r.SettledBy != ByGateway && r.SettledBy != BySweeper:
		return fmt.Errorf("%w %s: mode %q, settled by %q", ErrReceipt, r.RequestID, r.Mode, r.SettledBy)
	case len(r.Chunks) > maxChunks:
		return fmt.Errorf("%w %s: %d chunks", ErrReceipt, r.RequestID, len(r.Chunks))
	case r.CostNano < 0, r.SavedNano < 0, r.PriceVersion < 0, r.Attempts < 0, r.QueueTime < 0, r.TTFT < 0, r.Duration < 0:
		return fmt.Errorf("%w %s: a negative number", ErrReceipt, r.RequestID)
	case r.Attempts > maxAttempts || int64(int32(r.Priority)) != int64(r.Priority): //nolint:gosec // the conversion is the check
		return fmt.Errorf("%w %s: attempts or priority out of range", ErrReceipt, r.RequestID)
	}
	return nil
}

const (
	maxAttempts = 1000
	maxChunks   = 64
)

// tidy makes the one text that the caller wrote storable: what a caller sends
// must not keep a receipt from being stored.
func (r *Receipt) tidy() {
	id := r.ClientRequestID
	if len(id) > maxText {
		id = id[:maxText]
	}
	id = strings.ToValidUTF8(id, "")
	r.ClientRequestID = strings.ReplaceAll(id, "\x00", "")
}
