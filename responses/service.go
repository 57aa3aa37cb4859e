package responses

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"weir/gateway"
	"weir/tenants"
)

// Engine runs one exchange: a *gateway.Gateway.
type Engine interface {
	Run(ctx context.Context, c gateway.Call, sink gateway.Sink) error
	// CountTokens asks a model server how long the call's prompt is.
	CountTokens(ctx context.Context, c gateway.Call) (int64, error)
}

// Deps is what a Service works with.
type Deps struct {
	Engine Engine
	Store  Store
	Sealer *Sealer
	// Check makes a call of the body of a Chat request, as it would be made of
	// a caller's own. It names the members that have no effect.
	Check func(ctx context.Context, p *tenants.Principal, body []byte) (call gateway.Call, ignored []string, err error)
	// Dialect says what the chat template of a model can take.
	Dialect func(model string) Dialect
	// Explain turns the error of an exchange into words for the caller.
	Explain func(err error) Failure
	Media   Loader
	Now     func() time.Time
}

// Service runs the Responses API. It is safe for concurrent use.
type Service struct{ deps Deps }

// New makes a Service.
func New(deps Deps) *Service { return &Service{deps: deps} }

// Caller is who asks, and how.
type Caller struct {
	Principal       *tenants.Principal
	RequestID       string // req_..., ours
	ClientRequestID string
	QueueTTL        time.Duration
	ReceivedAt      time.Time

	// Room lends empty memory for n bytes, in which the whole context stands
	// until Sent is called, if it is, or else until the request is over. Both
	// may be nil.
	Room func(n int) ([]byte, error)
	Sent func()
}

// Owner is whose the caller's responses are.
func (c *Caller) Owner() Owner {
	return Owner{Tenant: c.Principal.Tenant, Project: c.Principal.Project}
}

// Run is one response on its way.
type Run struct {
	service *Service
	from    Caller
	create  *Create
	history *History
	call    gateway.Call
	model   string // its public name
	native  bool   // the engine is asked at its own /v1/responses
	id      string
	created time.Time

	mu     sync.Mutex // the exchange and its keep-alive take turns
	stream *stream
}

// Answer runs the response into out: a stream of events, or one object. It
// returns nil once out has the whole answer, else the error of the exchange.
// When out has begun before, it was told of the failure too.
func (r *Run) Answer(ctx context.Context, out gateway.Sink) error {
	return inputsFault(r.service.deps.Engine.Run(ctx, r.call, &answer{run: r, out: out, live: r.create.Stream}))
}

// Streamed reports that the caller wants a stream.
func (r *Run) Streamed() bool { return r.create.Stream }

// Ignored names the members of the request that have no effect.
func (r *Run) Ignored() []string { return r.create.Ignored }

// Prepare loads what the request goes on from and makes the call of both. A
// fault of the caller's is a *Problem, or the error of Deps.Check.
func (s *Service) Prepare(ctx context.Context, from Caller, c *Create) (*Run, error) {
	return s.prepare(ctx, from, c, NewID(), s.deps.Now())
}

func (s *Service) prepare(ctx context.Context, from Caller, c *Create, id string, created time.Time) (*Run, error) {
	var err error
	if c.Store, err = mayStore(from.Principal.Plan, c); err != nil {
		return nil, err
	}
	r, err := s.begin(ctx, from, c, id, created)
	if err != nil {
		return nil, err
	}
	r.aim()
	if c.Store {
		r.call.Effect = r.effect
	}
	if c.Background {
		r.call.Tier = tenants.TierBackground
	}
	return r, nil
}

// aim makes the call one to the engines' own /v1/responses, where the model has
// them. Their tokenizers are asked about a Chat request all the same.
func (r *Run) aim() {
	if r.native {
		asNative(&r.call)
	}
}

// begin makes a run that keeps nothing.
func (s *Service) begin(ctx context.Context, from Caller, c *Create, id string, created time.Time) (*Run, error) {
	r := &Run{service: s, from: from, create: c, id: id, created: created}
	var err error
	if r.history, err = s.history(ctx, from.Owner(), c); err != nil {
		return nil, err
	}
	dialect := s.deps.Dialect(c.Model)
	dialect.Open = func(sealed string) (string, bool) {
		return s.deps.Sealer.Open(from.Principal.Tenant, c.Model, sealed)
	}
	if err := LoadMedia(ctx, s.deps.Media, from.Principal.Tenant, "input", c.Input, dialect.NativeFiles); err != nil {
		return nil, err
	}
	body, err := r.chat(dialect)
	if err != nil {
		return nil, err
	}
	call, ignored, err := s.deps.Check(ctx, from.Principal, body)
	if err != nil {
		return nil, err
	}
	c.Ignored = append(c.Ignored, ignored...)
	call.ID, call.ClientRequestID = from.RequestID, from.ClientRequestID
	call.QueueTTL, call.ReceivedAt, call.Sent = from.QueueTTL, from.ReceivedAt, r.sent
	call.Session, call.Turn = r.history.Root, r.history.Turn
	if call.Session == "" {
		call.Session, call.Turn = r.id, 1
	}
	r.call, r.native = call, dialect.Native
	r.model = cmp.Or(dialect.Model, c.Model)
	r.stream = r.newStream(r.model)
	return r, nil
}

// chat is the whole context as a Chat request.
func (r *Run) chat(d Dialect) (body []byte, err error) {
	n := r.create.size(r.history.Items)
	if r.from.Room == nil {
		body = make([]byte, 0, n)
	} else if body, err = r.from.Room(n); err != nil {
		return nil, err
	}
	return r.create.Chat(body, r.history.Items, d)
}

// sent lets go of the context: a stream that goes on for minutes needs it no
// more.
func (r *Run) sent() {
	r.call.Fields, r.call.Prompt = nil, [2][]byte{}
	if r.from.Sent != nil {
		r.from.Sent()
	}
}

// mayStore reports whether the response is to be kept: a plan without retention
// keeps nothing, and what can't work without is refused.
func mayStore(plan *tenants.Plan, c *Create) (bool, error) {
	if plan == nil || plan.RetentionDays > 0 || !c.Store {
		return c.Store, nil
	}
	if c.Background {
		return false, problem("background", codeUnsupported, "'background' needs stored responses, and your organization stores none.")
	}
	return false, nil
}

func (r *Run) newStream(model string) *stream {
	c := r.create
	s := &stream{
		shape: newShape(r.id, r.created, c, model, Chain{Previous: c.Previous, Conversation: c.Conversation}),
		now:   r.service.deps.Now, tools: c.tools, serial: c.serial,
		state: state{tier: string(tenants.TierDefault)},
	}
	if c.Encrypted || !c.Store {
		s.seal = func(text string) string {
			return r.service.deps.Sealer.Seal(r.from.Principal.Tenant, c.Model, text)
		}
	}
	return s
}

// history loads the items that a request goes on from, and those that it
// refers to.
func (s *Service) history(ctx context.Context, o Owner, c *Create) (*History, error) {
	h := &History{}
	var err error
	switch {
	case c.Previous != "":
		h, err = s.deps.Store.History(ctx, o, c.Previous)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil, problem("previous_response_id", codeNotFound, "Previous response with id '%s' not found.", clip(c.Previous))
		case err == nil && !Terminal(h.Status):
			return nil, problem("previous_response_id", codeValue, "Previous response with id '%s' is still in progress.", clip(c.Previous))
		}
	case c.Conversation != "":
		h, err = s.deps.Store.Talk(ctx, o, c.Conversation)
		if errors.Is(err, ErrNotFound) {
			return nil, problem("conversation", codeNotFoundConversation, "Conversation with id '%s' not found.", clip(c.Conversation))
		}
	}
	if err != nil {
		return nil, err
	}
	return h, s.resolve(ctx, o, c)
}

// resolve puts the items in place that the input names by their ids.
func (s *Service) resolve(ctx context.Context, o Owner, c *Create) error {
	for i, it := range c.Input {
		if it.Type != typeReference {
			continue
		}
		found, err := s.deps.Store.Item(ctx, o, it.ID)
		if errors.Is(err, ErrNotFound) {
			return problem("input", codeValue, "Item with id '%s' not found. Items of responses with 'store' set to false are not kept.", clip(it.ID))
		}
		if err != nil {
			return err
		}
		c.Input[i] = found
	}
	return nil
}
