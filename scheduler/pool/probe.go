package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"weir/scheduler"
)

// maxHealthBody bounds what is read of an answer whose text doesn't matter, to
// use its connection again.
const maxHealthBody = 4 << 10

// Probe asks the endpoint for its health now: nil when it answers GET /health
// with 2xx within the time limit. Those who ask at once share one probe, which
// goes on to its own end when a caller leaves, and counts like a regular one.
func (p *Pool) Probe(ctx context.Context, id string) error {
	result := p.flight.DoChan(id, func() (any, error) {
		return nil, p.probe(context.WithoutCancel(ctx), id)
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("probe %s: %w", id, context.Cause(ctx))
	}
}

func (p *Pool) probe(ctx context.Context, id string) error {
	w, e, err := p.find(id)
	if err != nil {
		return err
	}
	err = p.get(ctx, e, "/health", func(body io.Reader) error {
		_, err := io.Copy(io.Discard, io.LimitReader(body, maxHealthBody))
		return err
	})
	p.judge(w, err)
	if err != nil {
		return fmt.Errorf("probe %s: %w", id, err)
	}
	return nil
}

// errStatus is an answer other than 2xx.
var errStatus = errors.New("unexpected status")

// get reads a path of the endpoint within the time limit of a probe.
func (p *Pool) get(ctx context.Context, e Endpoint, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := e.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%w %d", errStatus, resp.StatusCode)
	}
	return read(resp.Body)
}

// judge counts a probe's result and tells the scheduler when the verdict
// changes. One result that contradicts the verdict changes nothing, so that a
// flapping endpoint doesn't flap the pool; only the first good one is enough.
func (p *Pool) judge(w *watched, err error) {
	p.feeding.Lock()
	defer p.feeding.Unlock()
	p.mu.Lock()
	changed := w.count(err == nil, p.cfg)
	current := p.watched[w.ID] == w
	health := w.health
	p.mu.Unlock()
	if !changed || !current {
		return
	}
	p.feed.SetHealth(w.ID, health)
	if health == scheduler.Unhealthy {
		p.log.Warn("endpoint is unhealthy", "endpoint", w.ID, "error", err)
	} else {
		p.log.Info("endpoint is healthy", "endpoint", w.ID)
	}
}

// count reports whether the result changes the verdict.
func (w *watched) count(good bool, cfg Config) bool {
	verdict, needed := scheduler.Unhealthy, cfg.DownAfter
	if good {
		verdict, needed = scheduler.Healthy, cfg.UpAfter
		if w.health == scheduler.Unknown {
			needed = 1
		}
	}
	if w.health == verdict {
		w.streak = 0
		return false
	}
	if w.health == scheduler.Unknown && good {
		w.streak = 0
	}
	if w.streak++; w.streak < needed {
		return false
	}
	w.health, w.streak = verdict, 0
	return true
}

// readLoad takes the endpoint's load from its metrics. A failure leaves the
// last one, whose time tells its age; it says nothing of the health.
func (p *Pool) readLoad(ctx context.Context, id string) {
	w, e, err := p.find(id)
	if err != nil {
		return
	}
	var load Load
	if err := p.get(ctx, e, "/metrics", func(body io.Reader) error {
		load, err = parseLoad(io.LimitReader(body, maxMetrics))
		return err
	}); err != nil {
		return
	}
	load.At = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	w.load = load
}
