// Package api is every HTTP route of Weir: it authenticates, turns requests
// into calls of the rooms below and their errors into answers. It is the only
// package that knows the router.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"weir/api/inference"
	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/gateway/media"
	"weir/responses"
	"weir/tenants"
)

// Runner runs an exchange. gateway.Gateway is one. An error that it returns
// after it began to answer has been told to the sink.
type Runner interface {
	Run(ctx context.Context, c gateway.Call, s gateway.Sink) error
	// CountTokens asks a model server how long the call's prompt is.
	CountTokens(ctx context.Context, c gateway.Call) (int64, error)
}

// Catalogue is what is on sale at one moment.
type Catalogue interface {
	// Lookup finds a model by its name or an alias.
	Lookup(name string) (*catalogue.Model, bool)
	// Models lists all models in the order of their names.
	Models() []*catalogue.Model
	// Offers reports whether some pool of the model may serve the caller.
	Offers(m *catalogue.Model, who *tenants.Principal) bool
}

// Config bounds the server. Zero takes the default.
type Config struct {
	MaxBody        int64          // bytes of a decoded body; 32 MiB
	MaxBodies      int64          // bytes of all bodies in memory; 1 GiB
	TrustedProxies []netip.Prefix // whose X-Forwarded-For counts; none by default
	OpsToken       string         // of /ops/v1; empty refuses everyone
}

// Deps is what the server uses.
type Deps struct {
	Config    Config
	Keys      Authenticator
	Gateway   Runner
	Responses Responses         // what /v1/responses keeps
	Sealer    *responses.Sealer // of the reasoning that callers carry
	Media     responses.Loader  // of what requests name by address; nil: nothing is fetched
	// Background makes responses outlive their requests; without Runs there are
	// none.
	Background responses.BackgroundDeps
	Replays    Replays          // what answers requests that come again; nil: keys of callers' have no effect
	Limits     Limits           // what /v1/limits shows; nil: nobody has any
	Queue      Queue            // what /v1/queue shows; nil: nothing waits
	Catalogue  func() Catalogue // the present snapshot
	Now        func() time.Time // nil: time.Now

	Registerer prometheus.Registerer // for the server's own metrics; nil: none are kept
	Gatherer   prometheus.Gatherer   // what /metrics shows; nil: nothing
	Checks     []Check               // of /readyz
	Pools      func() any            // state of the pools, for /ops/v1/pools; nil: there is no such page
	// Decisions explains a request or, with "", shows so many of the latest
	// decisions, for /ops/v1/decisions; nil: there is no such page.
	Decisions func(request string, latest int) any
}

// Server has the public and the operator's listener.
type Server struct {
	log        *slog.Logger
	keys       Authenticator
	gateway    Runner
	responses  *responses.Service
	kept       Responses
	background *responses.Background // nil: there is none
	queue      Queue
	orders     Orders // nil: there are none
	limits     Limits
	replays    Replays
	catalogue  func() Catalogue
	now        func() time.Time

	parser  *inference.Parser
	media   responses.Loader
	answers map[gateway.Cause]answer
	bodies  *bodies
	badKeys *badKeys
	proxies proxies
	metrics *metrics

	public http.Handler
	ops    http.Handler
}

// New returns a server. It listens nowhere: Handler and Ops are for the
// caller's listeners.
func New(log *slog.Logger, d Deps) *Server {
	if d.Now == nil {
		d.Now = time.Now
	}
	maxBody, maxBodies := d.Config.MaxBody, d.Config.MaxBodies
	if maxBody == 0 {
		maxBody = 32 << 20
	}
	if maxBodies == 0 {
		maxBodies = 1 << 30
	}
	s := &Server{
		log: log, keys: d.Keys, gateway: d.Gateway, queue: d.Queue, limits: d.Limits, replays: d.Replays, catalogue: d.Catalogue, now: d.Now,
		parser: inference.NewParser(), media: d.Media, answers: answers(),
		bodies:  &bodies{limit: maxBody, room: newRoom(maxBodies), decoders: newDecoders()},
		badKeys: newBadKeys(d.Now), proxies: d.Config.TrustedProxies, metrics: newMetrics(d.Registerer),
	}
	if s.media == nil {
		s.media = media.NewLoader(log, nil, nil)
	}
	s.kept, s.responses = d.Responses, s.newResponses(d.Responses, d.Sealer)
	if d.Background.Runs != nil {
		s.background = responses.NewBackground(log, s.responses, d.Background)
		s.orders = d.Background.Runs
	}
	s.public = s.newPublic()
	s.ops = s.newOps(d)
	return s
}

// Background is what makes responses outlive their requests: its jobs and its
// Run are the caller's to run. Nil without Deps.Background.
func (s *Server) Background() *responses.Background { return s.background }

// Handler serves the public API.
func (s *Server) Handler() http.Handler { return s.public }

// Ops serves health, metrics and the operator's pages. It belongs on an
// address that the public can't reach.
func (s *Server) Ops() http.Handler { return s.ops }

// HTTPServer returns a server for the address with time and size limits that
// suit both long streams and strangers. It has no write timeout: answers set
// deadlines of their own.
func (s *Server) HTTPServer(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// newPublic builds the router from the one table of routes. Paths are matched
// as they came, percent signs included: a path that is only equal after
// decoding has no route.
func (s *Server) newPublic() http.Handler {
	e := echo.New()
	e.HideBanner = true
	e.IPExtractor = func(r *http.Request) string { return s.proxies.client(r).String() }
	e.Use(s.edge)
	for _, rt := range s.routes() {
		e.Add(rt.method, rt.path, s.handle(rt))
	}
	return e
}
