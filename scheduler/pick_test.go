package scheduler

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rig is a fleet without a scheduler, for formulas.
type rig struct {
	*fleet
	now time.Time
}

// candidate is an endpoint of a rig.
type candidate struct {
	live, pending, tokens, unseen int
	load                          Load
	has                           int    // blocks of the prompt
	cold                          uint32 // when it got its last cold prompt
	labels                        map[string]string
	bound                         bool // whether the session is bound to it
	full                          bool
}

// rigged builds a fleet of endpoints named e0, e1 and so on.
func rigged(t *testing.T, p Profile, candidates ...candidate) rig {
	t.Helper()
	r := rig{fleet: &fleet{}, now: time.Unix(1_000_000, 0)}
	p.SlowStart = -1
	p.Prefix.BlockTokens = 64
	cfg := Config{Profile: p}.withDefaults()
	r.configure(&cfg)
	endpoints := make([]Endpoint, len(candidates))
	for i, c := range candidates {
		endpoints[i] = Endpoint{ID: fmt.Sprintf("e%d", i), MaxConcurrency: 10, Labels: c.labels}
	}
	r.set(endpoints, r.now)
	for i, c := range candidates {
		p := r.endpoints[i]
		p.health = Healthy
		p.held, p.pending, p.tokens, p.unseen, p.load, p.coldAt = c.live, c.pending, c.tokens, c.unseen, c.load, c.cold
		if c.full {
			p.held = p.MaxConcurrency
		}
		if c.bound {
			r.bindings.bind(&Request{Session: "s"}, p, 0, r.now)
		}
		if c.has > 0 {
			hashes := r.request().chain.hashes[:c.has]
			r.prefix.search(hashes)
			r.prefix.use(&p.cache, hashes)
		}
	}
	return r
}

// request is one with a prompt of 8 blocks, 512 tokens.
func (r rig) request() *Request {
	q := &Request{Session: "s", InputTokens: 512, Prompt: [][]byte{make([]byte, 8*64*4)}}
	q.chain = r.hasher.Load().chain(q)
	return q
}

// pickOf picks with the endpoints in their own order.
func (r rig) pickOf(q *Request) choice {
	r.next = 0
	c, _ := r.pick(q, r.now)
	return c
}

func TestScorersFollowTheirFormulas(t *testing.T) {
	t.Parallel()
	loads := func(waiting ...int) (all []candidate) {
		for _, n := range waiting {
			all = append(all, candidate{load: Load{Waiting: n, At: time.Unix(1_000_000, 0)}})
		}
		return all
	}
	tests := []struct {
		name       string
		scorer     Scorer
		candidates []candidate
		want       []float64
	}{
		{"the queue, between the longest and the shortest", Scorer{Kind: "queue-scorer"}, loads(0, 5, 10), []float64{1, 0.5, 0}},
		{"equal queues are all best", Scorer{Kind: "queue-scorer"}, loads(3, 3), []float64{1, 1}},
		{
			"what an endpoint was sent since it told its queue counts as waiting",
			Scorer{Kind: "queue-scorer"},
			[]candidate{{load: Load{Waiting: 1}, unseen: 3}, {load: Load{Waiting: 2}}},
			[]float64{0, 1},
		},
		{
			"running requests",
			Scorer{Kind: "running-requests-size-scorer"},
			[]candidate{{load: Load{Running: 4}}, {load: Load{Running: 1}, unseen: 1}, {}},
			[]float64{0, 0.5, 1},
		},
		{
			"KV use, or our own leases where it is unknown",
			Scorer{Kind: "kv-cache-utilization-scorer"},
			[]candidate{{load: Load{KVUsage: 0.3, At: time.Unix(1, 0)}}, {live: 4}},
			[]float64{0.7, 0.6},
		},
		{"waiting requests up to 128", Scorer{Kind: "load-aware-scorer"}, loads(0, 32, 128, 500), []float64{0.5, 0.375, 0, 0}},
		{"waiting requests up to a threshold", Scorer{Kind: "load-aware-scorer", Threshold: 10}, loads(5), []float64{0.25}},
		{
			"live leases, the idle ones best",
			Scorer{Kind: "active-request-scorer"},
			[]candidate{{live: 0}, {live: 2}, {live: 8}},
			[]float64{1, 0.75, 0},
		},
		{
			"live leases with an idle threshold and a bound for the busy",
			Scorer{Kind: "active-request-scorer", Threshold: 2, MaxBusyScore: 0.5},
			[]candidate{{live: 2}, {live: 3}, {live: 6}},
			[]float64{1, 0.25, 0},
		},
		{
			"tokens in flight and of the request",
			Scorer{Kind: "token-load-scorer", Threshold: 1024},
			[]candidate{{pending: 256}, {pending: 256, has: 4}, {pending: 5000}},
			[]float64{0.25, 0.5, 0},
		},
		{"the part of the prompt that is cached", Scorer{Kind: "prefix-cache-scorer"}, []candidate{{has: 8}, {has: 2}, {}}, []float64{1, 0.25, 0}},
		{
			"the length of the cached part, squared",
			Scorer{Kind: "prefix-cache-scorer", MatchLengthWeight: 0.5, MatchLengthTokens: 1024},
			[]candidate{{has: 8}, {has: 4}},
			[]float64{0.5*0.25 + 0.5, 0.5*0.0625 + 0.25},
		},
		{"a cold prompt goes where the last one is longest ago", Scorer{Kind: "no-hit-lru-scorer"}, []candidate{{cold: 7}, {cold: 9}, {}}, []float64{0.5, 0, 1}},
		{"a warm prompt goes anywhere", Scorer{Kind: "no-hit-lru-scorer"}, []candidate{{has: 1}, {cold: 9}}, []float64{0.5, 0.5}},
		{"one endpoint for a cold prompt", Scorer{Kind: "no-hit-lru-scorer"}, []candidate{{}}, []float64{1}},
		{"the session's endpoint", Scorer{Kind: "session-affinity-scorer"}, []candidate{{}, {bound: true}}, []float64{0, 1}},
		{
			"the length for which an endpoint is meant",
			Scorer{Kind: "context-length-aware"},
			[]candidate{
				{},
				{labels: map[string]string{contextLabel: "0-1024"}},
				{labels: map[string]string{contextLabel: "512-512"}},
				{labels: map[string]string{contextLabel: "1512-4000"}},
				{labels: map[string]string{contextLabel: "0-12"}},
				{labels: map[string]string{contextLabel: "long"}},
			},
			[]float64{0.5, 0.3 + 0.7*(0.7/1.1024+0.3*0.5), 1, 0.15, 0.2, 0},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.scorer.Weight = 2
			r := rigged(t, Profile{Scorers: []Scorer{tt.scorer}}, tt.candidates...)
			c := r.pickOf(r.request())
			got := make([]float64, len(tt.candidates))
			for i, p := range r.sheet.endpoints {
				got[p.ID[1]-'0'] = r.sheet.values[0][i]
				if want := 2 * r.sheet.values[0][i]; r.sheet.scores[i] != want {
					t.Errorf("weighed score of %s is %v, want %v", p.ID, r.sheet.scores[i], want)
				}
			}
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
			if best := c.candidates[0]; best.Endpoint != c.endpoints[0].ID || best.Scores[0].Scorer != tt.scorer.Kind {
				t.Errorf("the best candidate is %+v, but %s was picked", best, c.endpoints[0].ID)
			}
		})
	}
}

func TestFiltersLeaveOutWhatTheyShould(t *testing.T) {
	t.Parallel()
	role := func(roles ...string) (all []candidate) {
		for _, r := range roles {
			c := candidate{}
			if r != "" {
				c.labels = map[string]string{RoleLabel: r}
			}
			all = append(all, c)
		}
		return all
	}
	now := time.Unix(1_000_000, 0)
	roles := role("decode", "prefill", "", "both", "encode", "encode-prefill")
	tests := []struct {
		name       string
		filter     Filter
		candidates []candidate
		want       string // the endpoints that are left
		left       int    // that it left out
	}{
		{"decoding", Filter{Kind: "decode-filter"}, roles, "023", 3},
		{"prefilling", Filter{Kind: "prefill-filter"}, roles, "135", 3},
		{"encoding", Filter{Kind: "encode-filter"}, roles, "45", 4},
		{"a label", Filter{Kind: "by-label", Label: RoleLabel, Values: []string{"decode", "both"}}, roles, "03", 4},
		{"a label, or none", Filter{Kind: "by-label", Label: RoleLabel, Values: []string{"decode"}, NoLabel: true}, roles, "02", 4},
		{"labels that no endpoint has let none pass", Filter{Kind: "label-selector-filter", Label: "x", Values: []string{"y"}}, roles, "", 6},
		{
			"tokens in flight",
			Filter{Kind: "concurrency-detector", Detector: Detector{Mode: CountTokens, MaxTokens: 100}},
			[]candidate{{tokens: 99}, {tokens: 100}},
			"0", 1,
		},
		{
			"tokens in flight with headroom",
			Filter{Kind: "concurrency-detector", Detector: Detector{Mode: CountTokens, MaxTokens: 100, Headroom: 0.2}},
			[]candidate{{tokens: 119}, {tokens: 120}},
			"0", 1,
		},
		{
			"full endpoints are not taken back when all are",
			Filter{Kind: "concurrency-detector", Detector: Detector{Mode: CountHybrid, MaxTokens: 100}},
			[]candidate{{tokens: 100}, {tokens: 200}},
			"", 2,
		},
		{
			"a long queue, a full cache, an old load",
			Filter{Kind: "utilization-detector"},
			[]candidate{
				{load: Load{Waiting: 4, KVUsage: 0.79, At: now}},
				{load: Load{Waiting: 5, At: now}},
				{load: Load{KVUsage: 0.8, At: now}},
				{load: Load{At: now.Add(-201 * time.Millisecond)}},
				{},
			},
			"0", 4,
		},
		{"all pass if none would", Filter{Kind: "utilization-detector"}, []candidate{{load: Load{Waiting: 50, At: now}}, {}}, "01", 0},
		{"the session's endpoint", Filter{Kind: "session-affinity-filter"}, []candidate{{}, {bound: true}}, "1", 1},
		{"a session whose endpoint is full goes anywhere", Filter{Kind: "session-affinity-filter"}, []candidate{{}, {bound: true, full: true}, {}}, "02", 0},
		{"no session yet", Filter{Kind: "session-affinity-filter"}, []candidate{{}, {}}, "01", 0},
		{"most of the prompt", Filter{Kind: "prefix-cache-affinity-filter"}, []candidate{{has: 7}, {has: 6}, {}}, "0", 2},
		{"none has most of the prompt", Filter{Kind: "prefix-cache-affinity-filter"}, []candidate{{has: 3}, {}}, "01", 0},
		{
			"the holder is too busy",
			Filter{Kind: "prefix-cache-affinity-filter", MaxPenalty: time.Second, Rate: 1000},
			[]candidate{{has: 8, pending: 2001}, {pending: 1000}},
			"01", 0,
		},
		{
			"the holder is busy, but not too busy",
			Filter{Kind: "prefix-cache-affinity-filter", MaxPenalty: time.Second, Rate: 1000},
			[]candidate{{has: 8, pending: 2000}, {pending: 1000}},
			"0", 1,
		},
		{
			"prompts of another length",
			Filter{Kind: "context-length-aware"},
			[]candidate{{}, {labels: map[string]string{contextLabel: "0-512"}}, {labels: map[string]string{contextLabel: "513-1000"}}, {labels: map[string]string{contextLabel: "?"}}},
			"01", 2,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rigged(t, Profile{Filters: []Filter{tt.filter}, Scorers: []Scorer{{Kind: "queue-scorer"}}, Headroom: -1}, tt.candidates...)
			c := r.pickOf(r.request())
			got := ""
			for i := range tt.candidates {
				for _, p := range r.sheet.endpoints {
					if p == r.endpoints[i] {
						got += p.ID[1:]
					}
				}
			}
			left := 0
			for _, l := range c.left {
				if l.by == tt.filter.Kind {
					left += l.n
				}
			}
			if got != tt.want || left != tt.left || (len(c.endpoints) == 0) != (tt.want == "") {
				t.Errorf("left are %q and %d were left out, want %q and %d", got, left, tt.want, tt.left)
			}
		})
	}
}

func TestFiltersApplyOneAfterTheOther(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	gpu, tpu := map[string]string{"accelerator": "gpu"}, map[string]string{"accelerator": "tpu"}
	r := rigged(
		t, Profile{Filters: []Filter{
			{Kind: "by-label", Label: "accelerator", Values: []string{"tpu"}},
			{Kind: "utilization-detector"},
		}},
		candidate{labels: gpu, load: Load{At: now}}, candidate{labels: tpu, load: Load{Waiting: 9, At: now}},
		candidate{labels: tpu, load: Load{At: now}}, candidate{labels: tpu, full: true},
	)
	c := r.pickOf(r.request())
	want := []leftOut{{leftFull, 1}, {"by-label", 1}, {"utilization-detector", 1}}
	if diff := cmp.Diff(want, c.left, cmp.AllowUnexported(leftOut{})); diff != "" || c.endpoints[0].ID != "e2" || c.considered != 1 {
		t.Errorf("picked %s of %d; left out (-want +got):\n%s", c.endpoints[0].ID, c.considered, diff)
	}
}

func TestPickersDrawByScore(t *testing.T) {
	t.Parallel()
	const draws = 20_000
	tests := []struct {
		name string
		kind PickerKind
		want []float64 // part of the draws
	}{
		{"the best score always", MaxScore, []float64{0, 0, 1}},
		{"in proportion to scores", WeightedRandom, []float64{0, 1.0 / 3, 2.0 / 3}},
		{"all alike", Random, []float64{1.0 / 3, 1.0 / 3, 1.0 / 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rigged(
				t, Profile{Scorers: []Scorer{{Kind: "queue-scorer", Weight: 1}}, Picker: Picker{Kind: tt.kind}},
				candidate{load: Load{Waiting: 10}}, candidate{load: Load{Waiting: 5}}, candidate{},
			)
			got := make([]float64, 3)
			for range draws {
				got[r.pickOf(r.request()).endpoints[0].ID[1]-'0'] += 1.0 / draws
			}
			for i := range got {
				if math.Abs(got[i]-tt.want[i]) > 0.02 {
					t.Errorf("drawn %v, want %v", got, tt.want)
					break
				}
			}
		})
	}
}

func TestDrawsCanBeRepeated(t *testing.T) {
	t.Parallel()
	draw := func() (s string) {
		r := rigged(t, Profile{Picker: Picker{Kind: Random}}, candidate{}, candidate{}, candidate{}, candidate{})
		for range 50 {
			s += r.pickOf(r.request()).endpoints[0].ID
		}
		return s
	}
	if one, two := draw(), draw(); one != two {
		t.Errorf("from the same seed %s and %s", one, two)
	}
}

func TestPickerNamesFallbacks(t *testing.T) {
	t.Parallel()
	r := rigged(
		t, Profile{Scorers: []Scorer{{Kind: "queue-scorer", Weight: 1}}, Picker: Picker{MaxEndpoints: 3}},
		candidate{load: Load{Waiting: 2}}, candidate{}, candidate{load: Load{Waiting: 3}}, candidate{load: Load{Waiting: 1}},
	)
	var got []string
	for _, p := range r.pickOf(r.request()).endpoints {
		got = append(got, p.ID)
	}
	if diff := cmp.Diff([]string{"e1", "e3", "e0"}, got); diff != "" {
		t.Errorf("picked (-want +got):\n%s", diff)
	}
}

func TestUnknownPluginsAreNamed(t *testing.T) {
	t.Parallel()
	p := Profile{
		Filters: []Filter{{Kind: "decode-filter"}, {Kind: "topology-affinity-filter"}},
		Scorers: []Scorer{{Kind: "lora-affinity-scorer"}, {Kind: WorkScorer}},
	}
	if diff := cmp.Diff([]string{"topology-affinity-filter", "lora-affinity-scorer"}, p.Unsupported()); diff != "" {
		t.Errorf("unsupported (-want +got):\n%s", diff)
	}
}

// The budget leaves an endpoint that has much in front of it to others, but a
// retry has no other: without it, it would go where it has failed.
func TestRetriesGoToABusyEndpointRatherThanBack(t *testing.T) {
	t.Parallel()
	r := rigged(t, Profile{}, candidate{}, candidate{})
	failed, busy := r.endpoints[0], r.endpoints[1]
	busy.told = 10 * ownPrefill
	if got := r.pickOf(r.request()).endpoints; len(got) != 1 || got[0] != failed {
		t.Fatal("a first try goes to the endpoint with much in front of it: the budget does not hold")
	}
	retry := r.request()
	retry.Exclude = []string{failed.ID}
	if got := r.pickOf(retry).endpoints; len(got) != 1 || got[0] != busy {
		t.Errorf("the retry was sent back to where it failed, though %s has free places", busy.ID)
	}
	busy.held = busy.MaxConcurrency
	if got := r.pickOf(retry).endpoints; len(got) != 1 || got[0] != failed {
		t.Error("where no other is free, a retry may go where it failed")
	}
}
