// Package eppsim is a simulated llm-d Endpoint Picker for tests: the exchange
// of a real one on the wire, over queues that are as simple as they can be,
// and faults at will. It is strict where a real one is lenient: a message
// that one might misread ends the stream.
package eppsim

import (
	"context"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"weir/scheduler/extproc"
)

// Config sets a Server.
type Config struct {
	Objectives    map[string]int // InferenceObjective -> priority; unknown ones are 0, as in a real one
	MaxQueued     int            // 0: no limit
	MaxBandQueued int            // 0: no limit
	TTL           time.Duration  // in the queue, with and without endpoints; 0: none
	Eviction      bool           // take places back from negative bands
	JSONErrors    bool           // refusals as since 0.11; else plain text
	SessionTokens bool           // requests with a token go where it says, answers carry one
	Fallbacks     bool           // name every other endpoint after the chosen one
	Upstream      [][2]string    // headers to add for the engine
	Mutate        func(body []byte) []byte
}

// Endpoint is one model server.
type Endpoint struct {
	Address string // host:port
	Max     int    // requests at a time
}

// Server is a picker. It is safe for concurrent use.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	cfg Config

	mu        sync.Mutex
	endpoints []Endpoint
	waiting   []*item // in the order in which they came
	live      []*item
	turn      map[int]string // band -> the flow that was served last
	faults    []Fault
	exchanges []*Exchange
	closed    bool
}

// item is a request with this server.
type item struct {
	band     int
	flow     string
	token    string
	at       Endpoint
	ready    chan struct{} // closed when at is set, or refusal
	refusal  *extprocv3.ImmediateResponse
	evict    chan struct{} // closed to take the place back
	evicting bool
	waited   time.Duration
}

// New makes a server without endpoints.
func New(cfg Config) *Server { return &Server{cfg: cfg, turn: make(map[int]string)} }

// SetEndpoints replaces the endpoints. What runs on one that goes runs on.
func (s *Server) SetEndpoints(endpoints []Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = append([]Endpoint(nil), endpoints...)
	s.dispatch()
}

// Close refuses what waits and whatever comes later, as a picker that drains.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, it := range s.waiting {
		it.refuse(s.refusal(503, extproc.RejectedShuttingDown))
	}
	s.waiting = nil
}

// Queued is how many requests wait.
func (s *Server) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// Live is how many places are taken.
func (s *Server) Live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

// Evict takes every place of a band back.
func (s *Server) Evict(band int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range s.live {
		if it.band == band {
			it.takeBack()
		}
	}
}

func (it *item) takeBack() {
	if !it.evicting {
		it.evicting = true
		close(it.evict)
	}
}

func (it *item) refuse(r *extprocv3.ImmediateResponse) {
	it.refusal = r
	close(it.ready)
}

// schedule waits in the queue. It returns nil when the caller left.
func (s *Server) schedule(ctx context.Context, x *Exchange) *item {
	it := &item{
		band: s.cfg.Objectives[x.Headers[extproc.Objective]], flow: x.Headers[extproc.FairnessID], token: x.Headers[extproc.SessionToken],
		ready: make(chan struct{}), evict: make(chan struct{}),
	}
	began := time.Now()
	s.enqueue(it)
	var over <-chan time.Time
	if s.cfg.TTL > 0 {
		timer := time.NewTimer(s.cfg.TTL)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-it.ready:
		it.waited = time.Since(began)
		return it
	case <-over:
		if s.leave(it) {
			it.refuse(s.expired())
		}
		return it
	case <-ctx.Done():
		if !s.leave(it) {
			s.release(it)
		}
		return nil
	}
}

func (s *Server) expired() *extprocv3.ImmediateResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.endpoints) == 0 {
		return s.refusal(503, extproc.RejectedNoEndpoints)
	}
	return s.refusal(429, extproc.RejectedExpired)
}
