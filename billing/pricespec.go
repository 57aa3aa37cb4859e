package billing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir/tenants"
)

// PriceSpec is a price as the operator writes it: USD per million tokens as
// decimal strings.
type PriceSpec struct {
	Model         string                  `yaml:"model" json:"model"`
	RateSpec      `yaml:",inline"`        // of requests that reach no step of LongContext
	Free          bool                    `yaml:"free,omitempty" json:"free,omitempty"`                     // costs nothing, on purpose: in place of rates
	ListPrice     bool                    `yaml:"list_price,omitempty" json:"list_price,omitempty"`         // of a tenant's price: it pays as others again, in place of rates
	Tiers         map[tenants.Tier]string `yaml:"tiers,omitempty" json:"tiers,omitempty"`                   // multipliers, such as "0.5"; "none": not sold; absent: DefaultTiers
	LongContext   []StepSpec              `yaml:"long_context,omitempty" json:"long_context,omitempty"`     // rates of long requests
	EffectiveFrom *time.Time              `yaml:"effective_from,omitempty" json:"effective_from,omitempty"` // absent: when it is published
	Backdated     bool                    `yaml:"backdated,omitempty" json:"backdated,omitempty"`           // a tenant's first own price may be effective from a past time: what was billed since can be rated again
}

// RateSpec is the rates of a price.
type RateSpec struct {
	Input       string `yaml:"input,omitempty" json:"input,omitempty"`
	CachedInput string `yaml:"cached_input,omitempty" json:"cached_input,omitempty"` // empty: as input
	Output      string `yaml:"output,omitempty" json:"output,omitempty"`
	Reasoning   string `yaml:"reasoning,omitempty" json:"reasoning,omitempty"` // empty: as output
}

// StepSpec is the rates of whole requests from so many input tokens on.
type StepSpec struct {
	MinInput int64 `yaml:"min_input_tokens" json:"min_input_tokens"`
	RateSpec `yaml:",inline"`
}

// notSold is the multiplier of a tier that the model isn't sold at.
const notSold = "none"

// Price reads the spec. EffectiveFrom is zero when the spec names no time, and
// is otherwise cut to the microsecond, as it is stored. The error is ErrPrice.
// Output must be written even where it is "0": a forgotten rate would be a free one.
func (s PriceSpec) Price() (Price, error) {
	p := Price{Model: s.Model, Lapsed: s.ListPrice}
	if s.EffectiveFrom != nil {
		p.EffectiveFrom = s.EffectiveFrom.UTC().Truncate(time.Microsecond)
	}
	if err := (&s).read(&p); err != nil {
		return Price{}, fmt.Errorf("price of %s: %w", s.Model, err)
	}
	if p.Model == "" {
		return Price{}, fmt.Errorf("%w: no model", ErrPrice)
	}
	return p, nil
}

func (s *PriceSpec) read(p *Price) (err error) {
	given := s.RateSpec != RateSpec{} || len(s.LongContext) > 0
	switch {
	case s.ListPrice && (given || s.Free || len(s.Tiers) > 0):
		return fmt.Errorf("%w: list_price stands alone", ErrPrice)
	case s.Free && given:
		return fmt.Errorf("%w: free stands in place of rates", ErrPrice)
	case s.ListPrice:
		return nil
	}
	if !s.Free {
		if p.Rates, err = s.rates(); err != nil {
			return err
		}
	}
	for _, step := range s.LongContext {
		rates, err := step.rates()
		if err != nil {
			return fmt.Errorf("long_context: %w", err)
		}
		p.Long = append(p.Long, Step{MinInput: step.MinInput, Rates: rates})
	}
	if p.Tiers, err = readTiers(s.Tiers); err != nil {
		return err
	}
	return p.Validate()
}

func (s *RateSpec) rates() (r Rates, err error) {
	for _, f := range [...]struct {
		name, text string
		rate       *int64
	}{
		{"input", s.Input, &r.Input},
		{"cached_input", cmp.Or(s.CachedInput, s.Input), &r.CachedInput},
		{"output", s.Output, &r.Output},
		{"reasoning", cmp.Or(s.Reasoning, s.Output), &r.Reasoning},
	} {
		if *f.rate, err = ParseUSD(f.text); err != nil {
			return Rates{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return r, nil
}

func readTiers(given map[tenants.Tier]string) (Tiers, error) {
	t := DefaultTiers()
	fields := t.named()
	for _, tier := range slices.Sorted(maps.Keys(given)) {
		field, ok := fields[tier]
		if !ok {
			return Tiers{}, fmt.Errorf("%w: tiers: %q has no multiplier: write flex, priority, batch or background", ErrPrice, tier)
		}
		text := given[tier]
		if text == notSold {
			*field = 0
			continue
		}
		bp, err := parseDecimal(text, tierDecimals)
		if err != nil {
			return Tiers{}, fmt.Errorf("tiers: %s: %w", tier, err)
		}
		if bp == 0 {
			return Tiers{}, fmt.Errorf("%w: tiers: %s: a multiplier must be above 0: write none where it isn't sold", ErrPrice, tier)
		}
		*field = bp
	}
	return t, nil
}

// named leads from the tiers to their multipliers in t.
func (t *Tiers) named() map[tenants.Tier]*int64 {
	return map[tenants.Tier]*int64{
		tenants.TierFlex: &t.Flex, tenants.TierPriority: &t.Priority,
		tenants.TierBatch: &t.Batch, tenants.TierBackground: &t.Background,
	}
}

// Spec writes the price as the operator would, everything in full.
func (p *Price) Spec() PriceSpec {
	s := PriceSpec{Model: p.Model, ListPrice: p.Lapsed}
	if !p.EffectiveFrom.IsZero() {
		from := p.EffectiveFrom
		s.EffectiveFrom = &from
	}
	if p.Lapsed {
		return s
	}
	s.RateSpec = p.spec()
	for _, step := range p.Long {
		s.LongContext = append(s.LongContext, StepSpec{MinInput: step.MinInput, RateSpec: step.spec()})
	}
	s.Tiers = make(map[tenants.Tier]string)
	for tier, bp := range p.Tiers.named() {
		s.Tiers[tier] = formatTier(*bp)
	}
	return s
}

func (r *Rates) spec() RateSpec {
	return RateSpec{
		Input: FormatUSD(r.Input), CachedInput: FormatUSD(r.CachedInput),
		Output: FormatUSD(r.Output), Reasoning: FormatUSD(r.Reasoning),
	}
}

func formatTier(basisPoints int64) string {
	if basisPoints == 0 {
		return notSold
	}
	return formatDecimal(basisPoints, tierDecimals, 0)
}

// sameTerms reports whether two prices differ at most in version and time.
func (p *Price) sameTerms(q *Price) bool {
	return p.Model == q.Model && p.Tenant == q.Tenant && p.Rates == q.Rates &&
		slices.Equal(p.Long, q.Long) && p.Tiers == q.Tiers && p.Lapsed == q.Lapsed
}
