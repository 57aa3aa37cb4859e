package billing

import (
	"cmp"
	"fmt"
	"time"
)

// PriceSpec is a price as the operator writes it in the catalogue: USD per
// million tokens as decimal strings.
type PriceSpec struct {
	Model         string     `yaml:"model" json:"model"`
	Input         string     `yaml:"input" json:"input"`
	CachedInput   string     `yaml:"cached_input,omitempty" json:"cached_input,omitempty"` // empty: as input
	Output        string     `yaml:"output" json:"output"`
	Reasoning     string     `yaml:"reasoning,omitempty" json:"reasoning,omitempty"`           // empty: as output
	EffectiveFrom *time.Time `yaml:"effective_from,omitempty" json:"effective_from,omitempty"` // absent: when it is applied
}

// Price reads the spec. EffectiveFrom is zero when the spec names no time, and
// is otherwise cut to the microsecond, as it is stored. The error is ErrPrice.
// Output must be written even where it is "0": a forgotten rate would be a free one.
func (s PriceSpec) Price() (Price, error) {
	p := Price{Model: s.Model}
	for _, f := range [...]struct {
		name, text string
		rate       *int64
	}{
		{"input", s.Input, &p.Input},
		{"cached_input", cmp.Or(s.CachedInput, s.Input), &p.CachedInput},
		{"output", s.Output, &p.Output},
		{"reasoning", cmp.Or(s.Reasoning, s.Output), &p.Reasoning},
	} {
		rate, err := ParseUSD(f.text)
		if err != nil {
			return Price{}, fmt.Errorf("price of %s: %s: %w", s.Model, f.name, err)
		}
		*f.rate = rate
	}
	if s.EffectiveFrom != nil {
		p.EffectiveFrom = s.EffectiveFrom.UTC().Truncate(time.Microsecond)
	}
	return p, p.Validate()
}

// Spec writes the price as the operator would, every rate in full.
func (p Price) Spec() PriceSpec {
	s := PriceSpec{
		Model:       p.Model,
		Input:       FormatUSD(p.Input),
		CachedInput: FormatUSD(p.CachedInput),
		Output:      FormatUSD(p.Output),
		Reasoning:   FormatUSD(p.Reasoning),
	}
	if !p.EffectiveFrom.IsZero() {
		from := p.EffectiveFrom
		s.EffectiveFrom = &from
	}
	return s
}

// sameRates reports whether two prices differ at most in version and time.
func (p Price) sameRates(q Price) bool {
	q.Version, q.EffectiveFrom = p.Version, p.EffectiveFrom
	return p == q
}
