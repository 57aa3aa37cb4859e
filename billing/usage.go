package billing

import (
	"errors"
	"fmt"
)

// Usage is what an exchange used, in disjoint classes of tokens: their sum is
// the total. (The wire's prompt_tokens includes cached ones and its
// completion_tokens includes reasoning; Totals splits them.)
type Usage struct {
	InputUncached int64 `json:"input_uncached"`
	InputCached   int64 `json:"input_cached"`
	Output        int64 `json:"output"` // visible output, without reasoning
	Reasoning     int64 `json:"reasoning"`
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

func (s UsageSource) valid() bool {
	switch s {
	case UpstreamFinal, UpstreamPartial, GatewayCount, NoUsage:
		return true
	default:
		return false
	}
}

// MaxTokens bounds each class of one exchange. No engine comes near it; a
// larger count is a broken report, and below it no cost can overflow 128 bits.
const MaxTokens = 1 << 40

// ErrUsage marks token counts that can't be true.
var ErrUsage = errors.New("billing: impossible usage")

// Validate reports a class that is negative or above MaxTokens, as ErrUsage.
func (u Usage) Validate() error {
	for _, c := range [...]struct {
		name string
		n    int64
	}{
		{"input_uncached", u.InputUncached},
		{"input_cached", u.InputCached},
		{"output", u.Output},
		{"reasoning", u.Reasoning},
	} {
		if c.n < 0 || c.n > MaxTokens {
			return fmt.Errorf("%w: %s is %d", ErrUsage, c.name, c.n)
		}
	}
	return nil
}

// Input is all input, cached or not.
func (u Usage) Input() int64 { return u.InputUncached + u.InputCached }

// Total is the sum of all classes.
func (u Usage) Total() int64 {
	return u.InputUncached + u.InputCached + u.Output + u.Reasoning
}

// Totals is usage as an engine reports it on the wire: Prompt includes Cached
// and Completion includes Reasoning. A nil count was absent, which isn't zero.
type Totals struct {
	Prompt     *int64
	Cached     *int64
	Completion *int64
	Reasoning  *int64
}

// Split makes disjoint classes of the totals. The result is always valid. It is
// sound when the totals could be true: a prompt count is there, nothing is
// negative or above MaxTokens, and no part exceeds its whole. Otherwise each
// count was clamped, and the caller bills its own count instead of this one.
// An absent completion is sound, since embeddings have none.
func (t Totals) Split() (u Usage, sound bool) {
	sound = t.Prompt != nil
	prompt := clamp(t.Prompt, MaxTokens, &sound)
	completion := clamp(t.Completion, MaxTokens, &sound)
	u.InputCached = clamp(t.Cached, prompt, &sound)
	u.InputUncached = prompt - u.InputCached
	u.Reasoning = clamp(t.Reasoning, completion, &sound)
	u.Output = completion - u.Reasoning
	return u, sound
}

// clamp brings a count into [0, limit], and notes when that changed it.
func clamp(n *int64, limit int64, sound *bool) int64 {
	if n == nil {
		return 0
	}
	c := min(max(*n, 0), limit)
	if c != *n {
		*sound = false
	}
	return c
}
