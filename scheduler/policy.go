package scheduler

import "time"

// The types of policies and plugins. Where llm-d has the same, the name, the
// parameters and their defaults are llm-d's.

// BandConfig is the policies of one priority. Zero fields take the pool's, or
// the default that is named with them.
type BandConfig struct {
	Priority      int
	MaxQueued     int           // requests
	MaxBytes      int64         // of their bodies (1e9)
	MaxFlowQueued int           // requests of one flow
	TTL           time.Duration // as Config.TTL
	Fairness      Fairness
	Ordering      Ordering // inside a flow; between flows for GlobalStrict
	// MinShare is the part of what the pool serves, in tokens, that the band
	// gets while it has a backlog, however much waits above it: 0 to 1.
	MinShare float64
}

// FairnessPolicy says whose turn it is among the flows of a band.
type FairnessPolicy string

// The fairness policies.
const (
	VirtualTokenCounter  FairnessPolicy = "weir-token-fairness-policy" // the default of ours
	GlobalStrict         FairnessPolicy = "global-strict-fairness-policy"
	RoundRobin           FairnessPolicy = "round-robin-fairness-policy"
	LeastAttainedService FairnessPolicy = "las"           // program-aware-fairness, strategy las
	TurnPriority         FairnessPolicy = "turn-priority" // program-aware-fairness, strategy turn-priority
)

// Fairness is a policy and its parameters. Zero parameters take llm-d's
// defaults.
type Fairness struct {
	Policy FairnessPolicy

	// LeastAttainedService (0.8, 0.2, 60 s; a negative half-life never decays).
	ServiceWeight, HeadWaitWeight float64
	HalfLife                      time.Duration

	// TurnPriority, and VirtualTokenCounter for the sessions of one flow
	// (0.5 turns for each second of waiting, 120 s).
	TurnTimeWeight float64
	TurnInactivity time.Duration
	// IgnoreTurns makes VirtualTokenCounter order a flow by Ordering alone.
	// Otherwise turns order what the Ordering leaves equal, which for FirstCome
	// is all.
	IgnoreTurns bool
}

// Ordering says which request of a flow goes first.
type Ordering string

// The orderings.
const (
	FirstCome   Ordering = "fcfs-ordering-policy" // default
	Earliest    Ordering = "edf-ordering-policy"  // by the end of the time limit in the queue
	SLODeadline Ordering = "slo-deadline-ordering-policy"
)

// DetectorKind says what makes a pool saturated.
type DetectorKind string

// The saturation detectors. Ours is concurrency over what each endpoint may
// take; it needs no metrics.
const (
	ConcurrencyDetector DetectorKind = "concurrency-detector"
	UtilizationDetector DetectorKind = "utilization-detector"
)

// ConcurrencyMode is what a concurrency detector counts.
type ConcurrencyMode string

// The modes of a concurrency detector.
const (
	CountRequests ConcurrencyMode = "requests" // default
	CountTokens   ConcurrencyMode = "tokens"
	CountHybrid   ConcurrencyMode = "hybrid"
)

// Detector says how saturation is measured. Zero fields take defaults.
type Detector struct {
	Kind DetectorKind // ConcurrencyDetector

	Mode         ConcurrencyMode
	MaxTokens    int // of an endpoint that names none (1,000,000)
	OutputTokens bool
	OutputRatio  float64 // expected output for each input token where OutputTokens counts it (1.5)
	MaxOutput    int     // bound of that estimate; 0: none

	QueueDepth  int           // UtilizationDetector: waiting requests that are full (5)
	KVUsage     float64       // and KV usage (0.8)
	Staleness   time.Duration // a load older than this is unknown (6 s, three intervals between probes; 200 ms in llm-d)
	StaleIsFull bool          // an unknown load counts as full, as in llm-d; here our own leases count instead

	Headroom float64 // as a filter, how far beyond the limit an endpoint may go
}

// UsageLimitKind says which bands may fill how much of a pool.
type UsageLimitKind string

// The usage-limit policies.
const (
	StaticLimit      UsageLimitKind = "static-usage-limit-policy" // default: all of it
	PriorityHoldback UsageLimitKind = "priority-holdback-policy"
	SoftReflective   UsageLimitKind = "soft-reflective-ceiling-policy"
)

// UsageLimit is such a policy with its parameters.
type UsageLimit struct {
	Kind                   UsageLimitKind
	MinCeiling, MaxCeiling float64 // PriorityHoldback; MaxCeiling 1 when 0
	ByValue                bool    // PriorityHoldback: by the value of priorities, not their rank
}

// Shed refuses requests of negative bands by chance: min(saturation^Power * K, 1).
// The zero value sheds nothing.
type Shed struct {
	Enabled    bool
	QueueDepth int     // 5
	KVUsage    float64 // 0.8
	Power, K   float64 // 5, 300
}

// Profile is how an endpoint is picked: what filters leave, the sum of what
// scorers say, and who gets it. A zero Profile is Weir's own.
type Profile struct {
	Filters []Filter
	Scorers []Scorer
	Picker  Picker
	Prefix  PrefixCache
	Precise PreciseCache
	Session SessionAffinity
	// Headroom is how far beyond its limit of leases an endpoint may go for a
	// request of whose prompt it has something cached, as a part of the limit,
	// while the pool as a whole is below its own (0.5 in a zero Profile, else 0
	// or that of a filter; negative: none).
	Headroom float64
	// SlowStart lets a new endpoint take its full share only after this long
	// (10 s); negative: at once.
	SlowStart time.Duration

	// Split computes prompts on other endpoints than answers; nil: never, but for
	// a zero Profile, which does so as soon as an endpoint has a role that leaves
	// answers to others.
	Split *Split
	// Rollout keeps a request to endpoints of one revision. The zero value of a
	// zero Profile does so in a split pool whose endpoints name revisions; any
	// other zero value doesn't.
	Rollout Rollout
}

// Split is how prefill and decode are done apart. The profile that has it picks
// the endpoint that answers. If the decider wants it, Prefill then picks the one
// that computes the prompt, which goes to the first one's sidecar in a header.
// Of both profiles, filters by label say which endpoints serve the stage; the
// prefix cache and the sessions are those of the answering profile.
type Split struct {
	Prefill Profile // its own Split, Prefix, Session and Rollout mean nothing
	Decider Decider
}

// DeciderKind says for which requests prefill is done apart.
type DeciderKind string

// The deciders.
const (
	PrefixDecider DeciderKind = "prefix-based-pd-decider" // default
	AlwaysDecider DeciderKind = "always-disagg-pd-decider"
)

// Decider is such a rule with its parameters. PrefixDecider wants prefill apart
// for prompts of at least PromptTokens of which at least NonCachedTokens are not
// cached where the answer is to be made; NonCachedTokens 0 never wants it.
type Decider struct {
	Kind            DeciderKind
	NonCachedTokens int
	PromptTokens    int
}

// RolloutMode says what the share of a revision goes by.
type RolloutMode string

// The modes of a rollout. A role counts as large as its ready endpoints are many.
const (
	RolloutByLargestRole RolloutMode = "max-role" // the role that is largest over all revisions
	RolloutBySum         RolloutMode = "sum"      // all required roles together
	RolloutDisabled      RolloutMode = "disabled"
)

// Rollout screens endpoints by revision before anything else looks at them: a
// request meets one revision only, and none that lacks a required role. Empty
// labels take the defaults that are named with them.
type Rollout struct {
	Mode          RolloutMode
	Roles         []string          // that a revision must have
	RevisionLabel string            // RevisionLabel
	RoleLabel     string            // disaggregatedset.x-k8s.io/role; without it an endpoint has the stages of its RoleLabel
	Scope         map[string]string // labels of the endpoints that count; empty: all
}

// Filter leaves out endpoints. Kind is an llm-d type name; Labels serve those
// that look at labels, Detector those that are detectors.
type Filter struct {
	Kind     string
	Label    string
	Values   []string
	NoLabel  bool // whether one without the label passes too
	Detector Detector
	// prefix-cache-affinity-filter (0.80, 18 s, 15,928 tokens/s)
	MinScore   float64
	MaxPenalty time.Duration
	Rate       float64
}

// Scorer rates endpoints from 0 to 1. Kind is an llm-d type name, or
// WorkScorer; zero parameters take llm-d's defaults.
type Scorer struct {
	Kind   string
	Weight float64

	Threshold         float64 // load-aware-scorer (128), token-load-scorer (4194304), active-request-scorer (idle: 0)
	MaxBusyScore      float64 // active-request-scorer (1)
	MatchLengthWeight float64 // prefix-cache-scorer: part of the score that goes by the match's length (0) and not by its share
	Approximate       bool    // prefix-cache-scorer: by what was sent, also where endpoints report what they have
	MatchLengthTokens int     // and the length that is scored 1 (8,192)
}

// WorkScorer is Weir's own: it rates an endpoint by the prefill work that
// stands before the request there and that the request itself brings, less
// what the endpoint's prefix cache has of it.
const WorkScorer = "weir-work-scorer"

// PickerKind says who gets a request among the rated.
type PickerKind string

// The pickers.
const (
	MaxScore       PickerKind = "max-score-picker" // default
	WeightedRandom PickerKind = "weighted-random-picker"
	Random         PickerKind = "random-picker"
)

// Picker is a picker and how many endpoints it names, the later ones as
// fallbacks (1).
type Picker struct {
	Kind         PickerKind
	MaxEndpoints int
}

// PrefixCache describes what is remembered of the endpoints' prefix caches.
// Zero fields take defaults.
type PrefixCache struct {
	Disabled       bool
	BlockTokens    int // tokens of a block; 0: as the engines say, at least 64
	BytesPerToken  int // 4
	MaxTokens      int // prefix that is matched at most (131,072)
	EndpointBlocks int // blocks of an endpoint that doesn't say how many it has (31,250)
}

// SessionAffinity keeps a session on its endpoint. Zero fields take defaults.
type SessionAffinity struct {
	TTL time.Duration // an idle session is forgotten after it (300 s)
}
