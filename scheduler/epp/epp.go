// Package epp serves schedulers to proxies and gateways over Envoy's external
// processing stream, as llm-d's Endpoint Picker does: one stream for each
// request, from its headers to the end of its answer. Gateways of ours say more
// of a request than others, and send reports instead of the answer.
package epp

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"

	"weir/scheduler"
)

// Fleet is what a Server schedules with.
type Fleet interface {
	// Scheduler finds a pool's scheduler.
	Scheduler(pool string) (scheduler.Scheduler, bool)
	// Pools names all pools.
	Pools() []string
	// Endpoints lists a pool's.
	Endpoints(pool string) []scheduler.Endpoint
	// Band finds the priority of a band by its name.
	Band(name string) (priority int, ok bool)
}

// Config bounds a Server. Zero fields take the default that is named with them.
type Config struct {
	// Primary says whether this server may admit requests now (always). It is
	// asked again once a request has an endpoint.
	Primary func() bool
	// Epoch numbers the times that somebody became primary, as "name/number" in
	// extproc.EpochHeader; nil, or "": there are none.
	Epoch func() string

	MaxStreams int           // at once (20,000)
	MaxBody    int64         // bytes of one request of a proxy's (32 MiB)
	MaxBodies  int64         // bytes of all requests that are being read or wait (1 GiB)
	Evicting   time.Duration // how long a request that lost its endpoint may take to end (10 s)
	Now        func() time.Time
}

func (c Config) withDefaults() Config {
	if c.Primary == nil {
		c.Primary = func() bool { return true }
	}
	if c.Epoch == nil {
		c.Epoch = func() string { return "" }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.MaxStreams = cmp.Or(c.MaxStreams, 20_000)
	c.MaxBody = cmp.Or(c.MaxBody, 32<<20)
	c.MaxBodies = cmp.Or(c.MaxBodies, 1<<30)
	c.Evicting = cmp.Or(c.Evicting, 10*time.Second)
	return c
}

// Server answers ext_proc streams. It is safe for concurrent use.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	log     *slog.Logger
	fleet   Fleet
	cfg     Config
	metrics *Metrics

	mu     sync.Mutex
	open   int                  // streams
	live   map[string]*exchange // by pool and id, from when they begin to wait until they end
	bodies int64                // bytes that are held
	halted bool                 // nothing is admitted any more

	health  *health.Server
	readers sync.WaitGroup
}

// New makes a Server.
func New(log *slog.Logger, fleet Fleet, m *Metrics, cfg Config) *Server {
	s := &Server{
		log: log, fleet: fleet, cfg: cfg.withDefaults(), metrics: m,
		live: make(map[string]*exchange), health: health.NewServer(),
	}
	s.serving(s.cfg.Primary())
	return s
}

// Follow takes in that Primary has changed. The health service says which it is;
// while it isn't the primary, whatever waits is refused as by a server that
// shuts down, so that it is sent to another one. What runs goes on.
func (s *Server) Follow(primary bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving(primary && !s.halted)
	if primary {
		return
	}
	for _, x := range s.live {
		x.leave(errStandby)
	}
}

// primary reports whether a request may be admitted now.
func (s *Server) primary() bool {
	s.mu.Lock()
	halted := s.halted
	s.mu.Unlock()
	return !halted && s.cfg.Primary()
}

var (
	errStandby = errors.New("this scheduler is not the primary")
	errLeft    = errors.New("the caller closed the stream")
)

// Process is one exchange. It returns when the request has ended, whichever way.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) (err error) {
	from, err := s.caller(stream.Context())
	if err != nil {
		return err
	}
	if !s.enter() {
		return stream.Send(immediate(full())) // an error would be a scheduler that fails
	}
	defer s.exit()
	ended := s.metrics.stream()
	defer func() { ended(status.Code(err)) }()

	x := &exchange{s: s, stream: stream, caller: from}
	defer x.release()
	r, refusal, err := x.request()
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return x.refuse(refusal)
	}
	return x.run(r)
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.cfg.MaxStreams {
		return false
	}
	s.open++
	return true
}

func (s *Server) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

// hold counts bytes of a body that are about to be kept, unless they are too
// many.
func (s *Server) hold(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 && s.bodies+n > s.cfg.MaxBodies {
		return false
	}
	s.bodies += n
	return true
}

// register enters an exchange among the live ones, unless one with its id is.
// Gateways of ours use an id again only when they have lost the stream that had
// it, which this side may notice later: that one then ends.
func (s *Server) register(x *exchange) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if earlier := s.live[x.key()]; earlier != nil {
		if !x.own || !earlier.own {
			return false
		}
		earlier.leave(errLeft)
		close(earlier.lost)
	}
	s.live[x.key()] = x
	return true
}

func (s *Server) forget(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[x.key()] == x {
		delete(s.live, x.key())
	}
}

// Live is how many exchanges wait or run.
func (s *Server) Live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}
