package billing

import (
	"math/big"
	"strings"

	"weir/tenants"
)

// Bill is how a cost came about. Its lines and its rounding sum to the cost,
// exactly.
type Bill struct {
	PriceVersion int64      `json:"price_version"`
	Model        string     `json:"model"`
	Tenant       tenants.ID `json:"own_price_of,omitempty"`     // whose price it is; empty: the list's
	MinInput     int64      `json:"min_input_tokens,omitempty"` // of the step that a long context reached
	Multiplier   string     `json:"tier_multiplier"`
	Lines        []BillLine `json:"lines"`
	Rounding     string     `json:"rounding_usd"` // what rounding to nano-USD added, or took
	CostNano     int64      `json:"cost_nano"`
	SavedNano    int64      `json:"saved_nano"`
	CostUSD      string     `json:"cost_usd"`
	SavedUSD     string     `json:"saved_usd"`
}

// BillLine is the cost of one class of tokens.
type BillLine struct {
	Class  string `json:"class"`
	Tokens int64  `json:"tokens"`
	Rate   string `json:"usd_per_million"` // before the tier's multiplier
	USD    string `json:"usd"`             // after it, exact
}

// Explain says how u comes to its cost at a service tier. The errors are those
// of Cost.
func (p *Price) Explain(u Usage, tier tenants.Tier) (Bill, error) {
	cost, err := p.Cost(u, tier)
	if err != nil {
		return Bill{}, err
	}
	multiplier := p.Tiers.BasisPoints(tier)
	b := Bill{
		PriceVersion: p.Version, Model: p.Model, Tenant: p.Tenant, Multiplier: formatTier(multiplier),
		CostNano: cost.Nano, SavedNano: cost.SavedNano, CostUSD: formatNano(cost.Nano), SavedUSD: formatNano(cost.SavedNano),
	}
	for _, s := range p.Long {
		if u.Input() >= s.MinInput {
			b.MinInput = s.MinInput
		}
	}
	row := p.row(u.Input())
	rest := new(big.Int).Mul(big.NewInt(cost.Nano), big.NewInt(basisPerNano))
	for _, c := range [...]struct {
		class        string
		tokens, rate int64
	}{
		{"input_uncached", u.InputUncached, row.Input},
		{"input_cached", u.InputCached, row.CachedInput},
		{"output", u.Output, row.Output},
		{"reasoning", u.Reasoning, row.Reasoning},
	} {
		amount := new(big.Int).Mul(big.NewInt(c.tokens), big.NewInt(c.rate))
		amount.Mul(amount, big.NewInt(multiplier))
		rest.Sub(rest, amount)
		b.Lines = append(b.Lines, BillLine{c.class, c.tokens, FormatUSD(c.rate), formatExact(amount)})
	}
	b.Rounding = formatExact(rest)
	return b, nil
}

// formatNano writes nano-USD as USD, with all decimals.
func formatNano(nano int64) string {
	return formatExact(new(big.Int).Mul(big.NewInt(nano), big.NewInt(basisPerNano)))
}

// exactDecimals is of a ten-thousandth of a pico-USD.
const exactDecimals = 16

// formatExact writes ten-thousandths of a pico-USD as USD, with nine decimals
// at least.
func formatExact(amount *big.Int) string {
	digits := new(big.Int).Abs(amount).String()
	digits = strings.Repeat("0", max(exactDecimals+1-len(digits), 0)) + digits
	cut := len(digits) - exactDecimals
	text := digits[:cut] + "." + digits[cut:cut+9] + strings.TrimRight(digits[cut+9:], "0")
	if amount.Sign() < 0 {
		return "-" + text
	}
	return text
}
