package gateway

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/tenants"
)

// router decides which of a model's routes a call takes. Chains are spread by
// rendezvous hashing, so that a changed weight moves no more of them than it
// must, and every replica decides alike; where a chain's last call went is
// remembered, so that one under way doesn't move at all.
type router struct{ homes homes }

// pressured is a scheduler that knows how busy its pool is for a band.
type pressured interface {
	Pressure(band int) (saturation float64, wait time.Duration)
}

// route picks one of the routes, of which there is at least one, for a call of
// a chain. Full says whether a route's pool is busier than its spill_when.
//
// A chain that is known stays where its last call went. A new one goes where
// its hash says. If that pool is too busy, the next one in the order of the
// routes takes the call, and with it the chain; if all are, it waits where it
// would have gone.
func (r *router) route(routes []catalogue.Route, chain uint64, known bool, full func(catalogue.Route) bool) catalogue.Route {
	first := -1
	if known {
		home := r.homes.of(chain, time.Now())
		first = slices.IndexFunc(routes, func(r catalogue.Route) bool { return r.Pool == home })
	}
	if first < 0 {
		first = rendezvous(routes, chain)
	}
	chosen := first
	for i := range routes {
		at := (first + i) % len(routes)
		if i > 0 && routes[at].Canary > 0 { // a canary gets its share and no more
			continue
		}
		if !full(routes[at]) {
			chosen = at
			break
		}
	}
	if known {
		r.homes.put(chain, routes[chosen].Pool, time.Now())
	}
	return routes[chosen]
}

// rendezvous is the route with the highest score for the chain, -weight/ln(u)
// with u in (0, 1) from a hash of chain and pool: each wins by its share of the
// weights (Wang and Ravishankar's weighted form of rendezvous hashing). A route
// that only takes overflow wins where there is no other.
func rendezvous(routes []catalogue.Route, chain uint64) int {
	best, most := 0, math.Inf(-1)
	for i, weight := range shares(routes) {
		h := xxhash.NewWithSeed(chain)
		_, _ = h.WriteString(routes[i].Pool) // never fails
		u := (float64(h.Sum64()>>11) + 0.5) / (1 << 53)
		if score := -weight / math.Log(u); weight > 0 && score > most {
			best, most = i, score
		}
	}
	return best
}

// shares are the routes' weights. A canary's is what makes its part of the
// whole what it should be.
func shares(routes []catalogue.Route) []float64 {
	out, weights, canaries := make([]float64, len(routes)), 0.0, 0.0
	for i, r := range routes {
		switch {
		case r.Overflow:
		case r.Canary > 0:
			canaries += r.Canary
		default:
			out[i] = float64(max(r.Weight, 1))
			weights += out[i]
		}
	}
	for i, r := range routes {
		if r.Canary > 0 && !r.Overflow {
			out[i] = r.Canary
			if weights > 0 && canaries < 1 {
				out[i] = r.Canary / (1 - canaries) * weights
			}
		}
	}
	return out
}

// eligible are the routes that the caller's plan lets it take: those to pools in
// its regions, as isolated as it wants, that are no other tenant's own. Where
// none is left the call is refused: it never goes elsewhere.
//
// A pool that claims to be verified and can't prove it now is none that a plan
// with such a wish has, until it can.
func (g *Gateway) eligible(snap *catalogue.Snapshot, m *catalogue.Model, p *tenants.Principal) ([]catalogue.Route, *Error) {
	var missing error
	allowed := make([]catalogue.Route, 0, len(m.Routes))
	for _, r := range m.Routes {
		pool, ok := snap.Pool(r.Pool)
		switch {
		case !ok:
			missing = fmt.Errorf("model %s: no pool %q", m.Name, r.Pool)
		case !pool.Serves(p):
		case p.Plan.Isolation != "" && !g.keepsClaim(pool):
			missing = fmt.Errorf("pool %s can't prove that it is %s", r.Pool, pool.Isolation)
		default:
			allowed = append(allowed, r)
		}
	}
	switch {
	case len(allowed) > 0:
		return allowed, nil
	case missing != nil:
		return nil, &Error{Cause: NoEndpoint, Err: missing}
	default:
		return nil, &Error{Cause: PlaceForbidden, Param: "model"}
	}
}

// takeRoute settles which pool serves the call.
func (x *exchange) takeRoute(snap *catalogue.Snapshot) *Error {
	routes, err := x.g.eligible(snap, x.model, x.call.Principal)
	if err != nil {
		return err
	}
	r := routes[0]
	if len(routes) > 1 {
		chain, known := x.chain()
		r = x.g.router.route(routes, chain, known, x.full)
	}
	x.pool, _ = snap.Pool(r.Pool)
	settings := snap.Scheduler(r.Pool)
	x.tellPriority, x.precise = settings.PropagatePriority, settings.Config.Profile.Precise
	queue, ok := x.g.deps.Pools.Scheduler(r.Pool)
	if !ok {
		return &Error{Cause: NoEndpoint, Err: fmt.Errorf("pool %s has no scheduler yet", r.Pool)}
	}
	x.queue = queueFor(queue, x.call.Principal.Plan)
	return nil
}

// full reports whether the route's pool is busier than the route may make it.
func (x *exchange) full(r catalogue.Route) bool {
	if r.SpillWhen == nil {
		return false
	}
	s, ok := x.g.deps.Pools.Scheduler(r.Pool)
	if !ok {
		return true
	}
	p, ok := s.(pressured)
	if !ok {
		return false // a remote scheduler keeps that to itself
	}
	saturation, wait := p.Pressure(x.priority)
	most := r.SpillWhen
	return most.Saturation > 0 && saturation >= most.Saturation || most.Wait > 0 && wait >= most.Wait
}

// chain names what the call belongs to, for the choice among routes: the
// session, else the caller's affinity hint, else how the conversation began,
// which stays the same from turn to turn. A call that shows none of them is
// unknown, and by chance.
func (x *exchange) chain() (chain uint64, known bool) {
	c := &x.call
	name := cmp.Or(c.Session, c.Affinity, opening(c.Prompt[1]))
	if name == "" {
		return rand.Uint64(), false //nolint:gosec // a share of load is no secret
	}
	return xxhash.Sum64String(strings.Join([]string{string(c.Principal.Tenant), x.model.Name, name}, "\n")), true
}

// opening is the first message of a conversation and, where that is of the
// system, the next one; of a plain prompt its beginning.
func opening(prompt []byte) string {
	const most = 1024
	first := gjson.GetBytes(prompt, "0")
	if !first.Exists() {
		return string(prompt[:min(len(prompt), most)])
	}
	if role := first.Get("role").Str; role != "system" && role != "developer" {
		return first.Raw
	}
	return first.Raw + gjson.GetBytes(prompt, "1").Raw
}
