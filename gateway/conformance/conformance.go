// Package conformance asks a model server whether it does what the gateway
// relies on: that it stops when a caller leaves, counts as it goes, keeps the
// prefix caches of tenants apart, and says how busy it is. The answers come
// from what the server does, not from what it says of itself.
package conformance

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"
)

// Status is the result of one check.
type Status string

// The results. Only Fail says that the server breaks what is relied on.
const (
	Pass        Status = "pass"
	Fail        Status = "fail"
	Unsupported Status = "unsupported" // it can't, by its kind or its flags, and the gateway can live with that
	Unknown     Status = "unknown"     // it could not be found out
)

// The checks, in the order in which they are made.
const (
	Health            = "health"
	Version           = "version"
	Models            = "models"
	Metrics           = "metrics"
	Tokenize          = "tokenize"
	Stream            = "stream"
	IncludeUsage      = "include_usage"
	ContinuousUsage   = "continuous_usage"
	CachedTokens      = "cached_tokens" //nolint:gosec // no credentials
	SaltIsolation     = "salt_isolation"
	StorageIsolation  = "storage_isolation"
	CancelStream      = "cancel_stream"
	CancelWhole       = "cancel_whole"
	PriorityDirection = "priority_direction"
)

// Check is one question and its answer.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`          // what was seen
	Todo   string `json:"todo,omitempty"` // how to mend it, or to live with it
}

// Report is what was found out about one server.
type Report struct {
	URL     string    `json:"url"`
	At      time.Time `json:"at"`
	Engine  string    `json:"engine"` // "vllm", "sglang", "llamacpp", "sim", or "unknown"
	Version string    `json:"version"`
	Model   string    `json:"model"` // that was asked
	Checks  []Check   `json:"checks"`
}

// Conforms reports whether no check failed.
func (r *Report) Conforms() bool {
	for _, c := range r.Checks {
		if c.Status == Fail {
			return false
		}
	}
	return true
}

// Of returns a check by its name; the zero value if it was not made.
func (r *Report) Of(name string) Check {
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	return Check{}
}

// Config says which server to ask, and how hard.
type Config struct {
	URL    string // without /v1
	Model  string // one that it serves; empty: the first of its list
	Engine string // its kind, in the words of Report; empty: found out
	Key    string // sent as a bearer token; empty: none

	// Fill is how many long answers may be asked for at once, to see whom the
	// server takes first when it has no more room. 0 leaves that unknown.
	Fill int
	// Storage is how many prompt tokens may be sent to push a prompt out of the
	// fast cache, to see whether slower storage keeps salts apart. 0 leaves that unknown.
	Storage int

	// Patience is how long it may take until the server has noticed that a caller
	// left. Default 8 s.
	Patience time.Duration
	// Only names the checks to make, beside those of health, version and models;
	// empty: all.
	Only []string

	Client *http.Client
	Now    func() time.Time
}

// Run makes all checks, one after another. It never gives up half-way: what
// can't be asked is unknown. Other callers of the server disturb the checks that
// read its load, so it should be idle.
func Run(ctx context.Context, cfg Config) *Report {
	cfg.Patience = cmp.Or(cfg.Patience, 8*time.Second)
	s := &server{cfg: cfg}
	r := &Report{URL: cfg.URL, At: cfg.Now().UTC().Truncate(time.Second), Engine: cfg.Engine, Model: cfg.Model}
	add := func(list ...Check) { r.Checks = append(r.Checks, list...) }

	health := s.health(ctx)
	add(health)
	if health.Status == Fail {
		return r
	}
	s.identify(ctx)
	r.Engine, r.Version = s.engine, s.version
	add(s.checkVersion())
	models := s.checkModels(ctx)
	add(models)
	r.Model = s.model
	if models.Status == Fail {
		return r
	}
	for _, group := range []struct {
		names []string
		make  func(context.Context) []Check
	}{
		{[]string{Metrics}, one(s.checkMetrics)},
		{[]string{Tokenize}, one(s.checkTokenize)},
		{[]string{Stream, IncludeUsage, ContinuousUsage, CancelStream, CancelWhole}, s.checkStream}, // by which leaving is timed
		{[]string{CachedTokens, SaltIsolation}, s.checkSalt},
		{[]string{StorageIsolation}, one(s.checkStorage)},
		{[]string{CancelStream, CancelWhole}, s.checkCancel},
		{[]string{PriorityDirection}, one(s.checkPriority)},
	} {
		if len(cfg.Only) == 0 || slices.ContainsFunc(group.names, func(n string) bool { return slices.Contains(cfg.Only, n) }) {
			add(group.make(ctx)...)
		}
	}
	return r
}

func one(check func(context.Context) Check) func(context.Context) []Check {
	return func(ctx context.Context) []Check { return []Check{check(ctx)} }
}

// Names lists all checks.
func Names() []string {
	return []string{
		Health, Version, Models, Metrics, Tokenize, Stream, IncludeUsage, ContinuousUsage, CachedTokens, SaltIsolation,
		StorageIsolation, CancelStream, CancelWhole, PriorityDirection,
	}
}
