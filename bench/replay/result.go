package main

import (
	"cmp"
	"slices"
	"time"

	"weir/scheduler"
)

// window is the stretch over which balance and shares are measured.
const window = 10 * time.Second

// record is one request that ended.
type record struct {
	*request
	engine                          int
	granted, submitted, first, over time.Duration
	hits, cached                    int // blocks, tokens
}

func (r record) ttft() time.Duration { return r.first - r.at }

// result is what happened in a run.
type result struct {
	records  []record
	refused  map[scheduler.Reason]int
	gaps     map[string]map[time.Duration]int // between tokens, in tokens, by class and length
	service  map[string][]int                 // cost of the tokens computed, by tenant and window
	computed [][]int                          // prompt tokens, by window and engine
	span     time.Duration
	engines  int
}

// figures is what tables show of a result.
type figures struct {
	requests        int
	hits            float64 // part of the prompts' blocks
	uncached        int     // prompt tokens computed
	ttft, tail      time.Duration
	gap             time.Duration // p95 between two tokens of the first request's class
	rate, tokens    float64       // a second
	whole, windowed float64       // prompt tokens of the busiest engine over the mean
	lumps           float64       // what windowed can't be below
}

func (r *result) figures() figures {
	f := figures{requests: len(r.records), hits: r.hitRate(), uncached: r.uncached(), ttft: r.ttft("", .5), tail: r.ttft("", .95)}
	if len(r.records) > 0 {
		f.gap = r.itl(r.records[0].class, .95)
	}
	f.rate, f.tokens = r.throughput()
	f.whole, f.windowed = r.balance()
	f.lumps = r.lumps()
	return f
}

// between returns the part of a result whose requests came in a stretch, when
// the workload was in full swing.
func (r result) between(from, to time.Duration) result {
	var kept []record
	for _, x := range r.records {
		if x.at >= from && x.at < to {
			kept = append(kept, x)
		}
	}
	r.records, r.span = kept, to-from
	return r
}

// endedBetween is like between, by the ends of requests.
func (r result) endedBetween(from, to time.Duration) result {
	r.records = slices.DeleteFunc(slices.Clone(r.records), func(x record) bool { return x.over < from || x.over >= to })
	r.span = to - from
	return r
}

// taken is how many places at engines were taken in a stretch, in the mean.
func (r *result) taken(from, to time.Duration) float64 {
	var held time.Duration
	for _, x := range r.records {
		held += max(min(x.over, to)-max(x.submitted, from), 0)
	}
	return held.Seconds() / (to - from).Seconds()
}

// attainable is the part of the blocks of the requests that came after the
// time which had been in an earlier prompt: what a cache finds that forgets
// nothing.
func (r *result) attainable(after time.Duration) float64 {
	sorted := slices.Clone(r.records)
	slices.SortFunc(sorted, func(a, b record) int { return cmp.Compare(a.at, b.at) })
	seen := map[uint64]bool{}
	hits, all := 0, 0
	for _, x := range sorted {
		found := true
		for _, id := range x.blocks {
			found = found && seen[id]
			if x.at >= after {
				all++
				if found {
					hits++
				}
			}
			seen[id] = true
		}
	}
	return ratio(hits, all)
}

func newResult(engines int) result {
	return result{refused: map[scheduler.Reason]int{}, gaps: map[string]map[time.Duration]int{}, service: map[string][]int{}, engines: engines}
}

func (r *result) refuse(reason scheduler.Reason) { r.refused[reason]++ }

func (r *result) refusals() (n int) {
	for _, k := range r.refused {
		n += k
	}
	return n
}

func (r *result) add(engine int, j *job, granted, now time.Duration) {
	r.records = append(r.records, record{
		request: j.request, engine: engine, granted: granted, submitted: j.submitted,
		first: j.first, over: now, hits: j.hits, cached: j.cached,
	})
}

// gap counts the time between two tokens, to a hundredth of it.
func (r *result) gap(class string, gap time.Duration, tokens int) {
	if r.gaps[class] == nil {
		r.gaps[class] = map[time.Duration]int{}
	}
	unit := time.Millisecond / 10
	r.gaps[class][gap.Round(unit)] += tokens
}

// outputCost is what an output token counts in a share, in prompt tokens: the
// scheduler's default.
const outputCost = 2

// serve counts tokens that an engine computed.
func (r *result) serve(engine int, j *job, at time.Duration, prompt, output int) {
	w := int(at / window)
	for len(r.service[j.tenant]) <= w {
		r.service[j.tenant] = append(r.service[j.tenant], 0)
	}
	r.service[j.tenant][w] += prompt + outputCost*output
	for len(r.computed) <= w {
		r.computed = append(r.computed, make([]int, r.engines))
	}
	r.computed[w][engine] += prompt
}

// hitRate is the part of all prompts' blocks that were found.
func (r *result) hitRate() float64 {
	hits, all := 0, 0
	for _, x := range r.records {
		hits += x.hits
		all += len(x.blocks)
	}
	return ratio(hits, all)
}

// uncached is how many prompt tokens were computed.
func (r *result) uncached() (tokens int) {
	for _, x := range r.records {
		tokens += x.input - x.cached
	}
	return tokens
}

func ratio[N int | time.Duration](a, b N) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// ttft is a quantile of the time to first token of a class; "" is all.
func (r *result) ttft(class string, q float64) time.Duration {
	var all []time.Duration
	for _, x := range r.records {
		if class == "" || x.class == class {
			all = append(all, x.ttft())
		}
	}
	return quantile(all, q)
}

// itl is a quantile of the time between two tokens of a class.
func (r *result) itl(class string, q float64) time.Duration {
	gaps := r.gaps[class]
	lengths, tokens := make([]time.Duration, 0, len(gaps)), 0
	for d, n := range gaps {
		lengths = append(lengths, d)
		tokens += n
	}
	slices.Sort(lengths)
	rank := int(q * float64(tokens))
	for _, d := range lengths {
		if rank -= gaps[d]; rank < 0 {
			return d
		}
	}
	return 0
}

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// throughput is requests and tokens, prompt and answer, a second.
func (r *result) throughput() (requests, tokens float64) {
	n := 0
	for _, x := range r.records {
		n += x.input + x.output
	}
	return float64(len(r.records)) / r.span.Seconds(), float64(n) / r.span.Seconds()
}

// balance is how many more prompt tokens the busiest engine computed than the
// mean: over the whole run, and in windows, each weighted by what was computed
// in it.
func (r *result) balance() (whole, windowed float64) {
	total := make([]int, r.engines)
	most, all := 0, 0
	for _, w := range r.computed {
		for i, n := range w {
			total[i] += n
		}
		most += slices.Max(w)
		all += sum(w)
	}
	return ratio(slices.Max(total)*r.engines, all), ratio(most*r.engines, all)
}

// lumps is the windowed balance that whole requests allow: in a window in which
// one request brings more than the mean of the engines, some engine has to take
// it.
func (r *result) lumps() float64 {
	windows := map[time.Duration]struct{ largest, all int }{}
	for _, x := range r.records {
		w := windows[x.submitted/window]
		w.largest = max(w.largest, x.input-x.cached)
		w.all += x.input - x.cached
		windows[x.submitted/window] = w
	}
	most, all := 0, 0
	for _, w := range windows {
		most += max(w.largest*r.engines, w.all)
		all += w.all
	}
	return ratio(most, all)
}

func sum(all []int) (n int) {
	for _, x := range all {
		n += x
	}
	return n
}
