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

// flight is a probe that runs, and then its result.
type flight struct {
	done  chan struct{}
	err   error
	valid bool // it was not cut short by its caller
}

// Probe asks the endpoint for its health now: nil when it answers GET /health
// with 2xx within the time limit. Those who ask at once share one probe, which
// counts like a regular one. It runs on the goroutine of the first who asks;
// if that one leaves, it counts for nothing and another takes over.
func (p *Pool) Probe(ctx context.Context, id string) error {
	for {
		w, err := p.find(id)
		if err != nil {
			return err
		}
		f, first := p.board(w)
		if first {
			p.fly(ctx, w, f)
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return fmt.Errorf("probe %s: %w", id, context.Cause(ctx))
		}
		if f.valid || first {
			return f.err
		}
	}
}

// board joins the endpoint's running probe or makes one for the caller to run.
func (p *Pool) board(w *watched) (f *flight, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.flight != nil {
		return w.flight, false
	}
	w.flight = &flight{done: make(chan struct{})}
	return w.flight, true
}

func (p *Pool) fly(ctx context.Context, w *watched, f *flight) {
	p.mu.Lock()
	client := w.client
	p.mu.Unlock()
	err := p.get(ctx, client, w.url+"/health", func(body io.Reader) error {
		_, err := io.Copy(io.Discard, io.LimitReader(body, maxHealthBody))
		return err
	})
	if f.valid = ctx.Err() == nil; f.valid {
		p.judge(w, err)
	}
	if err != nil {
		f.err = fmt.Errorf("probe %s: %w", w.id, err)
	}
	p.mu.Lock()
	w.flight = nil
	p.mu.Unlock()
	close(f.done)
}

// errStatus is an answer other than 2xx.
var errStatus = errors.New("unexpected status")

// get reads a page within the time limit of a probe.
func (p *Pool) get(ctx context.Context, client *http.Client, url string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
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
// changes.
func (p *Pool) judge(w *watched, err error) {
	p.feeding.Lock()
	defer p.feeding.Unlock()
	p.mu.Lock()
	changed := w.verdict.count(err == nil, p.cfg, time.Now())
	health := w.verdict.health
	p.mu.Unlock()
	if !changed || !p.current(w) {
		return
	}
	p.feed.SetHealth(w.id, health)
	if health == scheduler.Unhealthy {
		p.log.Warn("endpoint is unhealthy", "endpoint", w.id, "error", err)
	} else {
		p.log.Info("endpoint is healthy", "endpoint", w.id)
	}
}

// current reports whether the endpoint is still there. While feeding is held
// that stays so.
func (p *Pool) current(w *watched) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watched[w.id] == w
}

// readLoad takes the endpoint's load from its metrics. A failure tells
// the scheduler nothing: the time of the last load says how old it is, and the
// health is another question.
func (p *Pool) readLoad(ctx context.Context, w *watched, r *reader) error {
	p.mu.Lock()
	client, url, engine, ranks := w.client, w.metrics, w.engine, w.ranks
	p.mu.Unlock()
	var load scheduler.Load
	var each []scheduler.Load
	err := p.get(ctx, client, url, func(body io.Reader) (err error) {
		load, each, err = r.read(io.LimitReader(body, maxMetrics), engine, ranks)
		return err
	})
	if err != nil {
		return err
	}
	load.At = time.Now()
	p.feeding.Lock()
	defer p.feeding.Unlock()
	switch {
	case !p.current(w):
	case each == nil:
		p.feed.SetLoad(w.id, load)
	default:
		for rank, l := range each {
			l.At = load.At
			p.feed.SetLoad(scheduler.PlaceName(w.id, rank), l)
		}
	}
	return nil
}
