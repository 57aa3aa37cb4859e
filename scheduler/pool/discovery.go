package pool

import (
	"context"
	"log/slog"
)

// Found is an endpoint that a source names.
type Found struct {
	ID         string
	URL        string            // base URL, without a trailing slash or /v1
	MetricsURL string            // empty: the URL and /metrics
	Labels     map[string]string // may be nil
}

// Source finds endpoints. Implementations are comparable values: an equal one
// is the same source.
type Source interface {
	// Watch reports all endpoints whenever they change, until ctx ends. What
	// can't be read is not reported, so that the last good set stays: unknown
	// is not empty.
	Watch(ctx context.Context, log *slog.Logger, report func([]Found))
}

// maxFound bounds the endpoints of a source.
const maxFound = 16_384

// discovered is what a source found last.
type discovered struct {
	source Source
	found  []Found
	adopt  func(Found) Endpoint
}

func (d discovered) endpoints() []Endpoint {
	out := make([]Endpoint, len(d.found))
	for i, f := range d.found {
		out[i] = d.adopt(f)
	}
	return out
}

// SetDiscovery sets where further endpoints are looked for; nil: nowhere. adopt
// makes an endpoint of a found one. It is called with locks held, so it must
// not call the pool. What another source had found stays until this one has
// found something.
func (p *Pool) SetDiscovery(s Source, adopt func(Found) Endpoint) {
	p.update(func() {
		p.found.source, p.found.adopt = s, adopt
		if s == nil {
			p.found = discovered{}
		}
	})
}

// discover takes what a source found, if it is still the one that is asked.
func (p *Pool) discover(s Source, found []Found) {
	p.update(func() {
		if p.found.source == s {
			p.found.found = found
		}
	})
}
