package catalogue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"weir/tenants"
)

// maxTotal bounds an exchange: what is held for one is freed after a day even
// where everything else fails.
const maxTotal = 12 * time.Hour

// complaints gathers all that is wrong, so that one run tells everything.
type complaints []error

func (c *complaints) add(format string, args ...any) {
	*c = append(*c, fmt.Errorf(format, args...))
}

// Validate joins all that is wrong with the document, each in words that say
// what to do.
func (d *Document) Validate() error {
	var c complaints
	bands := d.validateBands(&c)
	for _, name := range slices.Sorted(maps.Keys(d.Plans)) {
		p := d.Plans[name]
		if err := p.Validate(); err != nil {
			c.add("plan %s: %w", name, err)
		}
		for _, tier := range slices.Sorted(maps.Keys(p.Bands)) {
			if band := p.Bands[tier]; !bands[band] {
				c.add("plan %s: tier %s names the band %q, which is not under bands:", name, tier, band)
			}
		}
	}
	pools := d.validatePools(&c)
	d.validateModels(&c, pools)
	for _, p := range d.Prices {
		if _, err := p.Price(); err != nil {
			c.add("%w", err)
		}
	}
	return errors.Join(c...)
}

func (d *Document) validateBands(c *complaints) map[string]bool {
	names, priorities := map[string]bool{}, map[int]string{}
	for _, b := range d.Bands {
		c.name("band", b.Name, names)
		if other, taken := priorities[b.Priority]; taken {
			c.add("bands %s and %s have the same priority %d: give each its own", other, b.Name, b.Priority)
		}
		priorities[b.Priority] = b.Name
	}
	return names
}

// name checks that a name is there, printable, of a sane length and new.
func (c *complaints) name(kind, name string, seen map[string]bool) {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	switch {
	case name == "" || len(name) > 200 || strings.ContainsFunc(name, bad):
		c.add("%s %q: a name has 1 to 200 printable characters and no spaces", kind, name)
	case seen[name]:
		c.add("%s %q is there twice", kind, name)
	}
	seen[name] = true
}

func (d *Document) validatePools(c *complaints) map[string]bool {
	names := map[string]bool{}
	for _, p := range d.Pools {
		c.name("pool", p.Name, names)
		if !tenants.KnownIsolation(p.Isolation) {
			c.add("pool %s: isolation is %q: write verified or single-tenant, or leave it out", p.Name, p.Isolation)
		}
		if p.Isolation == tenants.IsolationSingleTenant && len(p.Tenants) != 1 {
			c.add("pool %s: isolation is single-tenant, and %d tenants are named: name the one that it serves", p.Name, len(p.Tenants))
		}
		p.Scheduler.validate(c, p.Name, d.Bands)
		p.validateShared(c, d.Bands)
		ids, urls := map[string]bool{}, map[string]bool{}
		for _, e := range p.Endpoints {
			c.name("pool "+p.Name+": endpoint", e.ID, ids)
			if strings.Contains(e.ID, "#") {
				c.add("pool %s: endpoint %s: an id has no #, which leads to the number of a rank", p.Name, e.ID)
			}
			e.validatePlace(c, p.Name)
			e.validateTraits(c, "pool "+p.Name+": endpoint "+e.ID)
			if urls[e.URL] {
				c.add("pool %s: endpoint %s: another endpoint has the url %s: one server is one endpoint", p.Name, e.ID, e.URL)
			}
			urls[e.URL] = true
		}
		p.validateSettings(c)
	}
	return names
}

func (d *Document) validateModels(c *complaints, pools map[string]bool) {
	names, all := map[string]bool{}, map[string]bool{}
	for _, m := range d.Models {
		c.name("model", m.Name, names)
		for _, n := range append([]string{m.Name}, m.Aliases...) {
			c.name("model name or alias", n, all)
		}
		m.validate(c, pools)
		d.validateSpills(c, m)
	}
}

// validateSpills checks that somebody can tell how busy the routes' pools are.
func (d *Document) validateSpills(c *complaints, m Model) {
	for _, r := range m.Routes {
		shared := slices.ContainsFunc(d.Pools, func(p Pool) bool { return p.Name == r.Pool && p.Scheduler.IsShared() })
		if shared && r.SpillWhen != nil {
			c.add("model %s: route to %s: the pool's shared scheduler doesn't say how busy it is: leave spill_when out", m.Name, r.Pool)
		}
	}
}

func (m Model) validate(c *complaints, pools map[string]bool) {
	if len(m.Operations) == 0 {
		c.add("model %s: operations: name what it serves: chat, completions, embeddings", m.Name)
	}
	for _, o := range m.Operations {
		if !slices.Contains([]string{"chat", "completions", "embeddings"}, o) {
			c.add("model %s: operation %q: write chat, completions or embeddings", m.Name, o)
		}
	}
	if len(m.Routes) == 0 {
		c.add("model %s: routes: name at least one pool", m.Name)
	}
	to := map[string]bool{}
	for _, r := range m.Routes {
		if to[r.Pool] {
			c.add("model %s: two routes go to the pool %s: give one of them the weight of both", m.Name, r.Pool)
		}
		to[r.Pool] = true
		if !pools[r.Pool] {
			c.add("model %s: route to the pool %q, which is not under pools:", m.Name, r.Pool)
		}
		r.validate(c, m.Name)
	}
	m.validateRoutes(c)
	m.validateTemplate(c)
	m.validateMedia(c)
	m.validateUpstream(c)
	if min(m.Context, m.MaxOutput) < 0 {
		c.add("model %s: context_length and max_output_tokens can't be negative", m.Name)
	}
	if t := m.Timeouts; min(t.Connect, t.FirstByte, t.Idle, t.Total) < time.Duration(0) {
		c.add("model %s: timeouts can't be negative", m.Name)
	} else if t.Total > maxTotal {
		c.add("model %s: timeouts: total is %s: at most %s", m.Name, t.Total, maxTotal)
	}
}
