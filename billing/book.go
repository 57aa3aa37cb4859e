package billing

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"weir/tenants"
)

// Book is an immutable snapshot of all prices, past and to come. A nil Book is
// empty. It is safe for concurrent use.
type Book struct {
	models   map[string]*shelf
	versions map[int64]*Price
}

// shelf is the prices of one model. A timeline has the oldest first; a price
// holds until the next one of its timeline.
type shelf struct {
	list    []*Price
	tenants map[tenants.ID][]*Price
}

// NewBook makes a book of the given prices.
func NewBook(prices []Price) *Book {
	b := &Book{models: make(map[string]*shelf), versions: make(map[int64]*Price, len(prices))}
	for _, p := range prices {
		b.put(&p)
	}
	for _, s := range b.models {
		slices.SortFunc(s.list, older)
		for _, own := range s.tenants {
			slices.SortFunc(own, older)
		}
	}
	return b
}

// With is the book and further prices.
func (b *Book) With(more []Price) *Book {
	all := slices.Clone(more)
	if b != nil {
		for _, s := range b.models {
			for _, timeline := range append(slices.Collect(maps.Values(s.tenants)), s.list) {
				for _, p := range timeline {
					all = append(all, *p)
				}
			}
		}
	}
	return NewBook(all)
}

func (b *Book) put(p *Price) {
	if p.Version != 0 {
		b.versions[p.Version] = p
	}
	s := b.models[p.Model]
	if s == nil {
		s = &shelf{}
		b.models[p.Model] = s
	}
	if p.Tenant == "" {
		s.list = append(s.list, p)
		return
	}
	if s.tenants == nil {
		s.tenants = make(map[tenants.ID][]*Price)
	}
	s.tenants[p.Tenant] = append(s.tenants[p.Tenant], p)
}

func older(p, q *Price) int {
	return cmp.Or(p.EffectiveFrom.Compare(q.EffectiveFrom), cmp.Compare(p.Version, q.Version))
}

// Rate is what the model costs a tenant at a moment: its own price, else the
// list's; false when it had none. Requests are rated at the moment they
// started: that is the price that was promised. The price is not to be changed.
func (b *Book) Rate(model string, tenant tenants.ID, at time.Time) (Price, bool) {
	if b == nil || b.models[model] == nil {
		return Price{}, false
	}
	s := b.models[model]
	if own := inEffect(s.tenants[tenant], at); own != nil && !own.Lapsed {
		return *own, true
	}
	if p := inEffect(s.list, at); p != nil {
		return *p, true
	}
	return Price{}, false
}

// InEffect is the newest price of a tenant's own at a moment, or of the list
// (""), one that has lapsed included.
func (b *Book) InEffect(model string, tenant tenants.ID, at time.Time) (Price, bool) {
	if p := inEffect(b.timeline(model, tenant), at); p != nil {
		return *p, true
	}
	return Price{}, false
}

// Version is the price that a receipt names; false when the book lacks it.
func (b *Book) Version(version int64) (Price, bool) {
	if b == nil || b.versions[version] == nil {
		return Price{}, false
	}
	return *b.versions[version], true
}

// Since lists the versions that b has and earlier hasn't: by model, the list's
// first, then by tenant and time. A nil earlier book has none.
func (b *Book) Since(earlier *Book) []Price {
	var fresh []Price
	for version, p := range b.versions {
		if _, known := earlier.Version(version); !known {
			fresh = append(fresh, *p)
		}
	}
	slices.SortFunc(fresh, func(p, q Price) int {
		return cmp.Or(cmp.Compare(p.Model, q.Model), cmp.Compare(p.Tenant, q.Tenant), older(&p, &q))
	})
	return fresh
}

// timeline is a model's prices for a tenant of its own, or of the list.
func (b *Book) timeline(model string, tenant tenants.ID) []*Price {
	if b == nil {
		return nil
	}
	switch s := b.models[model]; {
	case s == nil:
		return nil
	case tenant == "":
		return s.list
	default:
		return s.tenants[tenant]
	}
}

// inEffect is the price of a timeline at a moment; nil when there was none.
func inEffect(timeline []*Price, at time.Time) *Price {
	n, _ := slices.BinarySearchFunc(timeline, at, func(p *Price, at time.Time) int {
		if p.EffectiveFrom.After(at) {
			return 1
		}
		return -1
	})
	if n == 0 {
		return nil
	}
	return timeline[n-1]
}
