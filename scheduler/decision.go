package scheduler

import "time"

// Decision is why one attempt of a request waited and where it went.
type Decision struct {
	Request    string        `json:"request"` // Request.ID: "<request id>.<attempt>"
	FairnessID string        `json:"fairness_id"`
	Band       int           `json:"band"`
	Session    string        `json:"session,omitempty"`
	Model      string        `json:"model,omitempty"` // its name at the engine
	EnteredAt  time.Time     `json:"entered_at"`
	Waited     time.Duration `json:"waited_ns"`
	Ahead      int           `json:"ahead"`  // estimate, when it came, of how many went before it
	Queued     int           `json:"queued"` // in the pool, when it came

	// What held it last while it waited. The other two are what the pool was
	// like then, and how full the band might make it; 0 where the order held it,
	// since nobody looks at the pool for those behind.
	Held           Hold    `json:"held,omitempty"`
	HeldSaturation float64 `json:"held_saturation,omitempty"`
	HeldCeiling    float64 `json:"held_ceiling,omitempty"`

	// The same of when it was decided.
	Saturation float64 `json:"saturation"`
	Ceiling    float64 `json:"ceiling"`

	Refused Reason `json:"refused,omitempty"` // empty when it was dispatched

	InputTokens  int            `json:"input_tokens"`
	CachedTokens int            `json:"cached_tokens"` // expected on the endpoint that computes the prompt
	Considered   int            `json:"considered"`    // endpoints that could take it
	Left         map[string]int `json:"left_out"`      // endpoints by the filter or condition that left them out
	Candidates   []Candidate    `json:"candidates"`    // best first, at most MaxCandidates
	Endpoint     string         `json:"endpoint,omitempty"`
	Prefill      string         `json:"prefill,omitempty"`  // the endpoint that computes the prompt for it
	Revision     string         `json:"revision,omitempty"` // to which the request was kept
	Why          string         `json:"why"`                // in one sentence, for people
}

// MaxCandidates is how many candidates a Decision keeps.
const MaxCandidates = 8

// Candidate is an endpoint that could have taken the request.
type Candidate struct {
	Endpoint     string   `json:"endpoint"`
	Score        float64  `json:"score"` // weighted sum
	Scores       []Score  `json:"scores"`
	CachedTokens int      `json:"cached_tokens"`
	Live         int      `json:"live"`
	Work         WorkCost `json:"work,omitzero"` // where WorkScorer rated it
}

// Score is what one scorer said.
type Score struct {
	Scorer string  `json:"scorer"`
	Value  float64 `json:"value"`
	Weight float64 `json:"weight"`
}

// Hold is what a waiting request waits for.
type Hold string

// The holds.
const (
	HeldByOrder      Hold = "order"        // others go first
	HeldByCeiling    Hold = "ceiling"      // the pool has room, but only beyond the ceiling of its band
	HeldByEndpoints  Hold = "endpoints"    // the pool is full, or so are the endpoints that may take it
	HeldByCaches     Hold = "caches"       // there is room, at the expense of what others come back for
	HeldByNoEndpoint Hold = "no_endpoints" // there is none
)

// Position is where a waiting request stands. It names nobody else.
type Position struct {
	Ahead    int           `json:"ahead"`       // estimate of how many go before it
	Expected time.Duration `json:"expected_ns"` // until it is dispatched, at the present rate; 0 when unknown
	Waited   time.Duration `json:"waited_ns"`
	Hold     Hold          `json:"held"`
}
