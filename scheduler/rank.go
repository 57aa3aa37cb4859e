package scheduler

import (
	"slices"
	"strconv"
)

// RankHeader tells a server of several data-parallel ranks which one is to take
// the request. The name is vLLM's.
const RankHeader = "X-Data-Parallel-Rank"

// places is how many the endpoint counts as: one for each rank.
func (e *Endpoint) places() int { return max(e.Ranks, 1) }

func places(endpoints []Endpoint) (n int) {
	for i := range endpoints {
		n += endpoints[i].places()
	}
	return n
}

// PlaceName is what a rank of an endpoint is called: in decisions, and where
// its load is told.
func PlaceName(id string, rank int) string { return id + "#" + strconv.Itoa(rank) }

// join makes the places of one server known. What its ranks share is the first
// one's: those that are new have heard of nothing yet.
func (f *fleet) join(ranks []*endpoint) {
	first := ranks[0]
	f.byID[first.ID] = first
	if t := first.trial; t != nil && !slices.ContainsFunc(ranks, func(p *endpoint) bool { return p.has(t) }) {
		first.trial = nil // it is on a rank that is no more, and its end will not be told here
	}
	if len(ranks) == 1 {
		first.name, first.ranks = first.ID, nil
		first.targets = []Target{{Endpoint: first.ID, URL: first.URL}}
		return
	}
	for _, p := range ranks {
		p.name, p.ranks, p.condition = PlaceName(p.ID, p.rank), ranks, first.condition
		p.targets = []Target{{
			Endpoint: p.ID, URL: p.URL, Headers: [][2]string{{RankHeader, strconv.Itoa(p.rank)}},
		}}
		if f.byID[p.name] == nil {
			f.byID[p.name] = p
		}
	}
}

// has reports whether the lease is live there.
func (p *endpoint) has(l *lease) bool {
	_, live := p.live[l]
	return live
}

// divided is the part of one of so many ranks in what their server says of all
// of them, rounded up.
func (l Load) divided(ranks int) Load {
	l.Running, l.Waiting = (l.Running+ranks-1)/ranks, (l.Waiting+ranks-1)/ranks
	l.Blocks /= ranks
	return l
}

// RankState is one rank of an endpoint that has several.
type RankState struct {
	Rank  int  `json:"rank"`
	Limit int  `json:"limit"`
	Live  int  `json:"live"`
	Load  Load `json:"load"`

	Cache CacheState `json:"cache"`
}

// together adds the state of a place to those of endpoints: the ranks of one
// server are one.
func together(all []EndpointState, p *endpoint, s EndpointState) []EndpointState {
	if p.ranks == nil {
		return append(all, s)
	}
	rank := RankState{Rank: p.rank, Limit: s.Limit, Live: s.Live, Load: s.Load, Cache: s.Cache}
	s.Cache = CacheState{}
	if n := len(all); n > 0 && p.rank > 0 && all[n-1].ID == s.ID && all[n-1].URL == s.URL && len(all[n-1].Ranks) > 0 {
		to := &all[n-1]
		to.MaxConcurrency, to.Limit, to.Live, to.Tokens = to.MaxConcurrency+s.MaxConcurrency, to.Limit+s.Limit, to.Live+s.Live, to.Tokens+s.Tokens
		to.Load.Running, to.Load.Waiting = to.Load.Running+s.Load.Running, to.Load.Waiting+s.Load.Waiting
		to.Load.Blocks += s.Load.Blocks
		to.Load.KVUsage = max(to.Load.KVUsage, s.Load.KVUsage)
		to.Ranks = append(to.Ranks, rank)
		return all
	}
	s.Ranks = []RankState{rank}
	return append(all, s)
}
