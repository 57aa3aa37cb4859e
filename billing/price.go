package billing

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"weir/tenants"
)

// Rates are what a token of each class costs, in pico-USD, which is the same
// number as micro-USD per million tokens: a list price with six decimals is
// exact.
type Rates struct {
	Input       int64 `json:"input"` // uncached input
	CachedInput int64 `json:"cached_input"`
	Output      int64 `json:"output"`
	Reasoning   int64 `json:"reasoning"`
}

// Step is the rates of long requests: of the whole request, from MinInput input
// tokens on, cached ones included.
type Step struct {
	MinInput int64 `json:"min_input"`
	Rates
}

// Price is what a model's tokens cost from a moment on. A published price never
// changes; another price is another version.
type Price struct {
	Model         string
	Tenant        tenants.ID // whose price it is; empty: everybody's who has no other
	Version       int64      // unique over all prices; 0 before it is stored
	EffectiveFrom time.Time
	Rates                // of requests that reach no step
	Long          []Step // by MinInput, smallest first
	Tiers         Tiers
	Lapsed        bool // the tenant has no price of its own from this moment on
	PublishedAt   time.Time
}

// Bounds of a price. With MaxTokens they keep sums in 128 bits.
const (
	maxRate  = 1_000_000_000_000_000 // a thousand dollars a token
	maxSteps = 10
)

var (
	// ErrPrice marks a price that can't be published, or that doesn't sell what
	// it is asked for.
	ErrPrice = errors.New("billing: invalid price")
	// ErrCost marks a cost beyond what nano-USD in 64 bits can hold (9.2e9 USD).
	ErrCost = errors.New("billing: cost out of range")
)

// Validate reports what keeps the price from being published, as ErrPrice.
func (p *Price) Validate() error {
	if why := p.fault(); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrPrice, p.Model, why)
	}
	return nil
}

func (p *Price) fault() string {
	switch {
	case p.Model == "":
		return "no model"
	case p.Lapsed && p.Tenant == "":
		return "the list's own price can't give way to the list's"
	case len(p.Long) > maxSteps:
		return fmt.Sprintf("long_context: %d steps, want at most %d", len(p.Long), maxSteps)
	}
	least := int64(1)
	for i := range p.Long {
		s := &p.Long[i]
		if s.MinInput < least || s.MinInput > MaxTokens {
			return "long_context: min_input_tokens must be positive and rise from step to step"
		}
		least = s.MinInput + 1
		if why := s.fault(); why != "" {
			return fmt.Sprintf("long_context from %d input tokens on: %s", s.MinInput, why)
		}
	}
	return cmp.Or(p.Rates.fault(), p.Tiers.fault())
}

// fault says what is wrong with the rates; "" is nothing.
func (r *Rates) fault() string {
	for _, rate := range [...]int64{r.Input, r.CachedInput, r.Output, r.Reasoning} {
		if rate < 0 || rate > maxRate {
			return "a rate must be between 0 and 1000000000 USD per million tokens"
		}
	}
	if r.CachedInput > r.Input {
		return "cached_input is dearer than input"
	}
	return ""
}

// row is the rates of a request with so many input tokens.
func (p *Price) row(input int64) *Rates {
	for i := len(p.Long) - 1; i >= 0; i-- {
		if input >= p.Long[i].MinInput {
			return &p.Long[i].Rates
		}
	}
	return &p.Rates
}

// Cost is money in nano-USD.
type Cost struct {
	Nano int64
	// SavedNano is what the request would have cost more, had none of its input
	// been cached.
	SavedNano int64
}

// Cost is the price of u at a service tier ("" is the default one). The sum over
// the classes, times the tier's multiplier, is exact and is rounded once, half
// up; this is the only place where money is rounded before an invoice. The
// error is ErrUsage, ErrCost, or ErrPrice where the tier isn't sold.
func (p *Price) Cost(u Usage, tier tenants.Tier) (Cost, error) {
	if err := u.Validate(); err != nil {
		return Cost{}, err
	}
	multiplier := p.Tiers.BasisPoints(tier)
	if multiplier == 0 {
		return Cost{}, fmt.Errorf("%w: %s has none for the tier %s", ErrPrice, p.Model, tier)
	}
	row := p.row(u.Input())
	if why := row.fault(); why != "" {
		return Cost{}, fmt.Errorf("%w: %s: %s", ErrPrice, p.Model, why)
	}
	nano, err := row.sum(u).nano(multiplier)
	if err != nil {
		return Cost{}, err
	}
	u.InputUncached, u.InputCached = u.Input(), 0
	uncached, err := row.sum(u).nano(multiplier)
	if err != nil {
		return Cost{}, err
	}
	return Cost{Nano: nano, SavedNano: uncached - nano}, nil
}

// Most is the upper bound, in nano-USD, of what any usage may cost that has no
// more input and output tokens than given, however they fall into classes and
// whichever step of a long context they reach. It is math.MaxInt64 where that
// can't be counted, or where the tier isn't sold.
func (p *Price) Most(input, output int64, tier tenants.Tier) int64 {
	multiplier := p.Tiers.BasisPoints(tier)
	input, output = max(input, 0), max(output, 0)
	if multiplier == 0 || max(input, output) > MaxTokens {
		return math.MaxInt64
	}
	most := p.most(input, output, multiplier)
	for i := range p.Long {
		if p.Long[i].MinInput <= input {
			most = max(most, p.Long[i].most(input, output, multiplier))
		}
	}
	return most
}

func (r *Rates) most(input, output, multiplier int64) int64 {
	if r.fault() != "" {
		return math.MaxInt64
	}
	var sum uint128
	sum.addProduct(input, max(r.Input, r.CachedInput))
	sum.addProduct(output, max(r.Output, r.Reasoning))
	nano, err := sum.nano(multiplier)
	if err != nil {
		return math.MaxInt64
	}
	return nano
}
