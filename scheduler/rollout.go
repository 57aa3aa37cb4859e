package scheduler

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// RevisionLabel is the label that says of which revision an endpoint is, as
// Kubernetes' DisaggregatedSet writes it.
const RevisionLabel = "disaggregatedset.x-k8s.io/revision"

const (
	rolloutRoleLabel = "disaggregatedset.x-k8s.io/role"
	rolePrefill      = "prefill"
	roleDecode       = "decode"
	unknownRevision  = -1 // of an endpoint whose label is missing
)

// rollout is a Rollout made ready for use: how the endpoints' revisions stand.
// Servers of two revisions may not understand each other's caches, so that a
// request meets one revision only.
type rollout struct {
	Rollout

	own    bool // it is on where a split pool has revisions
	on     bool
	judged bool // some endpoint was probed, so that ready means found healthy
	chance *rand.Rand

	revisions []revision // by name; an endpoint's number is the place + 1
	order     []int      // of the draw in hand
	keys      []float64
}

// revision is one that some endpoint has.
type revision struct {
	name   string
	hash   uint64
	ready  []int // endpoints, by required role
	weight int   // 0: it may take nothing
	picked uint64
}

// RevisionState is how one revision of a pool that goes by revisions stands.
type RevisionState struct {
	Revision string         `json:"revision"`
	Ready    map[string]int `json:"ready"`  // endpoints, by required role
	Share    float64        `json:"share"`  // of the requests that it is to take; 0 while a role is missing
	Picked   uint64         `json:"picked"` // requests that were dispatched to it
}

func (r *rollout) configure(cfg *Config) {
	r.Rollout = cfg.Profile.Rollout
	r.own = r.Mode == "" && cfg.Profile.own()
	r.RevisionLabel = cmp.Or(r.RevisionLabel, RevisionLabel)
	r.RoleLabel = cmp.Or(r.RoleLabel, rolloutRoleLabel)
	if r.own {
		r.Roles = []string{rolePrefill, roleDecode}
	}
	r.chance = chance(cfg.Seed + 1)
}

// screen counts the revisions anew, after endpoints or their health changed.
func (f *fleet) screen() {
	r := &f.rollout
	had := r.revisions
	r.revisions = nil
	r.on = r.Mode == RolloutByLargestRole || r.Mode == RolloutBySum ||
		r.own && f.apart != nil && slices.ContainsFunc(f.endpoints, func(p *endpoint) bool { return p.Labels[r.RevisionLabel] != "" })
	if !r.on {
		for _, p := range f.endpoints {
			p.revision, p.screened = 0, false
		}
		return
	}
	r.name(f.endpoints, had)
	for _, p := range f.endpoints {
		p.revision = r.number(p)
		if p.counted = f.ready(p); !p.counted || p.revision == unknownRevision || !r.counts(p) {
			continue
		}
		for i, role := range r.Roles {
			if r.plays(p, role) {
				r.revisions[p.revision-1].ready[i]++
			}
		}
	}
	r.weigh()
	for _, p := range f.endpoints {
		p.screened = p.revision == unknownRevision || r.revisions[p.revision-1].weight == 0
	}
}

// ready reports whether the endpoint counts as there. Where endpoints are
// probed, one that was not judged yet is not.
func (f *fleet) ready(p *endpoint) bool {
	return !p.Draining && (p.health == Healthy || p.health == Unknown && !f.rollout.judged)
}

// name lists the revisions that the endpoints have, in the order of their names.
func (r *rollout) name(endpoints []*endpoint, had []revision) {
	for _, p := range endpoints {
		name := p.Labels[r.RevisionLabel]
		if name == "" && !r.own || r.find(name) >= 0 {
			continue
		}
		one := revision{name: name, hash: xxhash.Sum64String(name), ready: make([]int, len(r.Roles))}
		for _, old := range had {
			if old.name == name {
				one.picked = old.picked
			}
		}
		r.revisions = append(r.revisions, one)
	}
	slices.SortFunc(r.revisions, func(a, b revision) int { return cmp.Compare(a.name, b.name) })
}

// find is the place of a revision; negative: there is none.
func (r *rollout) find(name string) int {
	return slices.IndexFunc(r.revisions, func(v revision) bool { return v.name == name })
}

// number is that of an endpoint's revision. In Weir's own profile endpoints
// without the label are a revision of their own: whoever labels the first ones
// of a pool shall not lose the others.
func (r *rollout) number(p *endpoint) int {
	name := p.Labels[r.RevisionLabel]
	if name == "" && !r.own {
		return unknownRevision
	}
	return r.find(name) + 1
}

func (r *rollout) counts(p *endpoint) bool {
	for label, value := range r.Scope {
		if p.Labels[label] != value {
			return false
		}
	}
	return true
}

// plays reports whether the endpoint has a role of a rollout.
func (r *rollout) plays(p *endpoint, role string) bool {
	if own, has := p.Labels[r.RoleLabel]; has {
		return own == role
	}
	prefill, decode := stages(p.Labels[RoleLabel])
	return role == rolePrefill && prefill || role == roleDecode && decode
}

// weigh sets how large each revision is: 0 where a required role has no ready
// endpoint, else as many as are ready of the role that is largest over all such
// revisions, the first one of equals, or of all required roles.
func (r *rollout) weigh() {
	totals := make([]int, len(r.Roles))
	for _, v := range r.revisions {
		if !slices.Contains(v.ready, 0) {
			for i, n := range v.ready {
				totals[i] += n
			}
		}
	}
	largest := 0
	for i, n := range totals {
		if n > totals[largest] {
			largest = i
		}
	}
	for i := range r.revisions {
		v := &r.revisions[i]
		v.weight = 0
		switch {
		case len(v.ready) == 0 || slices.Contains(v.ready, 0):
		case r.Mode == RolloutBySum:
			for _, n := range v.ready {
				v.weight += n
			}
		default:
			v.weight = v.ready[largest]
		}
	}
}

// draw puts the revisions that may take a request in the order in which they
// are asked: each is the first with the chance of its weight, and of the rest
// the next.
//
// The lot of a request in a session is the session's own: weighted rendezvous
// hashing (the score of Schindelhauer and Schomaker, Weighted Distributed Hash
// Tables, 2005). So the turns of a chain stay with the caches of one revision,
// and yet the shares hold, over sessions as over requests: when weights change,
// as many sessions move as they have to, and those only to what has grown.
func (r *rollout) draw(q *Request) []int {
	r.order, r.keys = r.order[:0], sized(r.keys, len(r.revisions))
	session := uint64(0)
	if q.Session != "" {
		session = xxhash.Sum64String(q.Session)
	}
	for i := range r.revisions {
		v := &r.revisions[i]
		if v.weight == 0 || q.Revision != "" && v.name != q.Revision {
			continue
		}
		u := r.chance.Float64
		if q.Session != "" {
			u = func() float64 { return unitOf(mix(session ^ v.hash)) }
		}
		r.keys[i] = -math.Log(1-u()) / float64(v.weight)
		r.order = append(r.order, i)
	}
	slices.SortFunc(r.order, func(i, j int) int { return cmp.Compare(r.keys[i], r.keys[j]) })
	return r.order
}

// unitOf spreads a hash over [0, 1), by as many of its bits as a float can hold.
func unitOf(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// mix is the finalizer of splitmix64: each bit of what goes in turns half of
// those that come out.
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// pick chooses the endpoints that may take a request. Where a pool goes by
// revisions, that which was drawn is asked first; if it has no room the next
// one is, so that who waits for one revision doesn't hold up what another could
// take. While all have room the shares are those of the draw, and when none has,
// those of what ends.
func (f *fleet) pick(r *Request, now time.Time) (c choice, again time.Time) {
	if !f.rollout.on {
		return f.pickIn(r, 0, now)
	}
	c = choice{left: []leftOut{{by: leftRevision, n: len(f.places)}}}
	for _, i := range f.rollout.draw(r) {
		var later time.Time
		if c, later = f.pickIn(r, i+1, now); len(c.endpoints) > 0 {
			c.revision = f.rollout.revisions[i].name
			return c, time.Time{}
		}
		if !later.IsZero() {
			again = earlier(again, later)
		}
	}
	return c, again
}

// states is how the revisions stand.
func (r *rollout) states() (all []RevisionState) {
	sum := 0
	for _, v := range r.revisions {
		sum += v.weight
	}
	for _, v := range r.revisions {
		s := RevisionState{Revision: v.name, Ready: make(map[string]int, len(r.Roles)), Picked: v.picked}
		for i, role := range r.Roles {
			s.Ready[role] = v.ready[i]
		}
		if sum > 0 {
			s.Share = float64(v.weight) / float64(sum)
		}
		all = append(all, s)
	}
	return all
}

// granted counts what was dispatched.
func (f *fleet) granted(c *choice) {
	if f.rollout.on {
		f.rollout.revisions[c.endpoints[0].revision-1].picked++
	}
	switch {
	case c.prefill != nil:
		f.splits.Apart++
	case f.apart != nil:
		f.splits.Together++
	}
}
