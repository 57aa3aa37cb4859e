package billing

import "weir/tenants"

// Tiers are the multipliers of a price at the service tiers, in basis points:
// 5000 is half the price. 0 is a tier that the model isn't sold at. The default
// tier is always sold, at the price itself.
type Tiers struct {
	Flex       int64
	Priority   int64
	Batch      int64
	Background int64
}

const (
	wholeTier = 10_000    // basis points of a multiplier of one
	maxTier   = 1_000_000 // a hundredfold
)

// DefaultTiers are the multipliers of a price that names none.
func DefaultTiers() Tiers {
	return Tiers{Flex: 5000, Priority: 17_500, Batch: 5000, Background: wholeTier}
}

// BasisPoints is the multiplier of a tier ("" is the default one); 0 where the
// price doesn't sell it.
func (t Tiers) BasisPoints(tier tenants.Tier) int64 {
	switch tier {
	case tenants.TierDefault, "":
		return wholeTier
	case tenants.TierFlex:
		return t.Flex
	case tenants.TierPriority:
		return t.Priority
	case tenants.TierBatch:
		return t.Batch
	case tenants.TierBackground:
		return t.Background
	default:
		return 0
	}
}

// Sells reports whether the model is sold at a tier.
func (p *Price) Sells(tier tenants.Tier) bool { return p.Tiers.BasisPoints(tier) > 0 }

// fault says what is wrong with the multipliers; "" is nothing.
func (t Tiers) fault() string {
	for _, bp := range [...]int64{t.Flex, t.Priority, t.Batch, t.Background} {
		if bp < 0 || bp > maxTier {
			return "a tier's multiplier must be above 0 and at most 100"
		}
	}
	return ""
}
