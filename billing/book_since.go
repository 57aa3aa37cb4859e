package billing

import (
	"cmp"
	"slices"
)

// Since lists the versions that b has and earlier hasn't, by model and time.
// A nil earlier book has none.
func (b *Book) Since(earlier *Book) []Price {
	var fresh []Price
	for model, prices := range b.models {
		for _, p := range prices {
			if earlier != nil {
				if _, published := earlier.find(model, p.EffectiveFrom); published {
					continue
				}
			}
			fresh = append(fresh, p)
		}
	}
	slices.SortFunc(fresh, func(x, y Price) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), x.EffectiveFrom.Compare(y.EffectiveFrom))
	})
	return fresh
}
