package scheduler

import (
	"slices"
	"strings"
	"time"
)

// PrefillHeader tells the sidecar of the endpoint that answers which other
// server is to compute the prompt: host and port. The name is llm-d's.
const PrefillHeader = "X-Prefiller-Host-Port"

// ownNonCached is from how many uncached tokens on Weir's own profile has a
// prompt computed apart. Less is done sooner than it is sent elsewhere and back,
// and hardly delays the answers beside it.
const ownNonCached = 512

// split is a Split made ready for use.
type split struct {
	decider  Decider
	answers  []filter // by label: who answers
	computes []filter // and who computes prompts for others
	prefill  profile
	byRole   bool // only where endpoints have roles that leave answers to others
}

// Splits counts the requests of a split pool that were dispatched.
type Splits struct {
	Apart    uint64 `json:"apart"`    // their prompts are computed at another endpoint
	Together uint64 `json:"together"` // where the answer is made
}

// pair is the other half of a choice, where there is one.
type pair struct {
	prefill  *endpoint // that computes the prompt; nil: the one that answers
	found    int       // tokens of the prompt that it is expected to have cached
	revision string    // to which the request was kept
}

// compileSplit makes a profile's split ready, and takes what says by label who
// serves which stage out of its filters. The two stages draw lots of their own:
// with the same ones each endpoint would always get the same partner.
func compileSplit(p Profile, own bool, main *profile, seed uint64) *split {
	if own && p.Split == nil {
		role := func(kind string) []filter {
			f, _ := newFilter(Filter{Kind: kind})
			return []filter{f}
		}
		return &split{
			decider: Decider{Kind: PrefixDecider, NonCachedTokens: ownNonCached}, byRole: true,
			answers: role("decode-filter"), computes: role("prefill-filter"),
			prefill: compileRules(p, own, ^seed),
		}
	}
	if p.Split == nil {
		return nil
	}
	s := &split{decider: p.Split.Decider}
	prefill := p.Split.Prefill
	s.prefill = compileRules(prefill, prefill.own(), ^seed)
	s.answers, main.filters = byLabel(main.filters)
	s.computes, s.prefill.filters = byLabel(s.prefill.filters)
	return s
}

// byLabel parts the filters that look at labels alone from the others.
func byLabel(all []filter) (labels, others []filter) {
	for _, x := range all {
		if x.label {
			labels = append(labels, x)
		} else {
			others = append(others, x)
		}
	}
	return labels, others
}

// assign finds out which endpoints serve which stage.
func (f *fleet) assign() {
	f.places, f.next, f.apart = f.endpoints, 0, nil
	s := f.profile.split
	if s == nil || s.byRole && !slices.ContainsFunc(f.endpoints, (*endpoint).onlyHelps) {
		return
	}
	f.places = passing(f.endpoints, s.answers)
	f.apart = &stage{places: passing(f.endpoints, s.computes)}
}

// onlyHelps reports whether the endpoint's role leaves answers to others.
func (p *endpoint) onlyHelps() bool {
	_, decode := stages(p.Labels[RoleLabel])
	return !decode
}

func passing(endpoints []*endpoint, filters []filter) (out []*endpoint) {
	for _, p := range endpoints {
		if !slices.ContainsFunc(filters, func(x filter) bool { return !x.pass(nil, nil, p) }) {
			out = append(out, p)
		}
	}
	return out
}

// wants reports whether a prompt of so many tokens, of which so many are cached
// where the answer is to be made, is to be computed apart. The rule is llm-d's.
func (d *Decider) wants(tokens, cached int) bool {
	if d.Kind == AlwaysDecider {
		return true
	}
	return d.NonCachedTokens > 0 && tokens >= max(d.PromptTokens, d.NonCachedTokens) && tokens-cached >= d.NonCachedTokens
}

// pickIn chooses who answers a request, of a revision (0: any), and who computes
// its prompt if another is to. A request for whose prompt all that could compute
// it are full waits, since its endpoint would have to do the work of several. If
// none can be hoped for, the endpoint that answers computes the prompt too: it
// is able to, and slow is better than nothing.
func (f *fleet) pickIn(r *Request, revision int, now time.Time) (c choice, again time.Time) {
	c, again = f.choose(r, revision, now)
	if f.apart == nil || len(c.endpoints) == 0 || !f.profile.split.decider.wants(f.sheet.input, c.cached) {
		return c, again
	}
	helper, again := f.helper(c.endpoints[0], now)
	if len(helper.endpoints) > 0 {
		c.prefill, c.found = helper.endpoints[0], helper.cached
		return c, time.Time{}
	}
	if slices.ContainsFunc(f.apart.places, func(p *endpoint) bool {
		return p.present() && !p.open() && f.sheet.helps(p, c.endpoints[0]) == ""
	}) {
		return choice{left: helper.left}, again
	}
	return c, time.Time{}
}

// helper chooses who computes the prompt of the request in hand for the endpoint
// that is to answer it. The chain and what is known of it are those of the
// answer's pick.
func (f *fleet) helper(answers *endpoint, now time.Time) (c choice, again time.Time) {
	main, a := &f.sheet, &f.apart.sheet
	a.begin(main.request, &f.profile.split.prefill, now)
	a.only, a.input, a.chain, a.exact, a.most = main.only, main.input, main.chain, main.exact, main.most
	again = f.able(a, f.apart)
	f.stretch(a)
	kept := a.endpoints[:0]
	for _, p := range a.endpoints {
		if by := main.helps(p, answers); by != "" {
			a.leave(by, 1)
			continue
		}
		kept = append(kept, p)
	}
	a.endpoints = kept
	if !f.narrow(a) {
		return choice{left: a.left}, again
	}
	return f.take(a, f.apart), time.Time{}
}

// helps is what keeps an endpoint from ever computing the prompt for another,
// or "". The header that names a rank is for both legs, so that theirs must be
// the same. One that failed the request is not asked twice: the answer's own
// endpoint can do without it.
func (a *sheet) helps(p, answers *endpoint) (bar string) {
	switch {
	case a.only != 0 && p.revision != a.only:
		return leftRevision
	case p.ID == answers.ID || slices.Contains(a.request.Exclude, p.ID):
		return leftExcluded
	case answers.ranks != nil && p.rank != answers.rank:
		return leftRank
	default:
		return ""
	}
}

// aim is where a choice is sent.
func (f *fleet) aim(c *choice) []Target {
	first := c.endpoints[0]
	if len(c.endpoints) == 1 && c.prefill == nil {
		return first.targets
	}
	var out []Target
	for _, p := range c.endpoints {
		t := p.targets[0]
		if q := c.prefill; q != nil {
			if p.rank != first.rank || p.ID == q.ID {
				continue // for another prompt's place
			}
			t.Prefill = &q.targets[0]
			t.Headers = append([][2]string{{PrefillHeader, hostPort(q.URL)}}, t.Headers...)
		}
		out = append(out, t)
	}
	return out
}

// hostPort is where a base URL leads.
func hostPort(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		return host
	}
	if scheme == "https" {
		return host + ":443"
	}
	return host + ":80"
}
