// Package inference is the OpenAI wire of the inference API: it turns the
// bytes of a request into a gateway.Call, in one pass and without decoding
// them, and a gateway's answer back into HTTP. What a caller may send, and what
// becomes of it, is the table in policy.go.
package inference

import (
	"slices"
	"sync"
	"time"

	"weir/api/inference/jsonscan"
	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/gateway/media"
	"weir/tenants"
)

// Models finds a model by its public name or an alias.
type Models interface {
	Lookup(name string) (*catalogue.Model, bool)
}

// Input is one request after authentication, its body decoded.
type Input struct {
	Operation gateway.Operation
	Principal *tenants.Principal
	Models    Models
	Body      []byte
	// Done is closed when the caller leaves; nil is never.
	Done <-chan struct{}
	// Media loads what the body names by address, and the text of files. Nil
	// loads nothing: both are refused.
	Media func(sources []media.Source) ([]media.Loaded, error)
	// Alloc gives n bytes for what has to be rewritten; nil uses make.
	Alloc func(n int) []byte
}

// Request is what a body says.
type Request struct {
	// Call lacks what the body doesn't tell: ID, ClientRequestID, QueueTTL,
	// ReceivedAt and the session. Its Fields may share memory with the input's Body and
	// with what Alloc gave.
	Call gateway.Call
	// Store says that the answer is to be kept, with Metadata: a part of the
	// input's Body that isn't checked; empty when there is none.
	Store    bool
	Metadata []byte
	// Ignored names what the caller sent and we don't use.
	Ignored []string
}

// Parser reads requests. It is safe for concurrent use.
type Parser struct {
	policies map[gateway.Operation]policy
	schemas  *schemas
	pool     sync.Pool
}

// NewParser returns a parser with the policy table.
func NewParser() *Parser {
	return &Parser{
		policies: policies(),
		schemas:  newSchemas(),
		pool:     sync.Pool{New: func() any { return new(parse) }},
	}
}

// Parse checks a body against the operation's policy. A fault of the caller's
// is a *Problem; of one who leaves while it waits, the error is context.Canceled;
// other errors of Input.Media pass.
func (ps *Parser) Parse(in Input) (Request, error) {
	p, _ := ps.pool.Get().(*parse)
	defer func() {
		p.reset()
		ps.pool.Put(p)
	}()
	p.Cursor = jsonscan.New(in.Body)
	p.body, p.in, p.schemas = in.Body, in, ps.schemas
	p.call = gateway.Call{Principal: in.Principal, Operation: in.Operation, Choices: 1}
	p.document(ps.policies[in.Operation])
	p.settle()
	if err := p.Err(); err != nil {
		return Request{}, problemOf(err, in.Body)
	}
	p.call.Fields = p.fields()
	p.call.Prompt = p.prompt(p.call.Fields)
	return Request{Call: p.call, Ignored: p.ignored, Store: p.store, Metadata: p.metadata}, nil
}

const maxMembers = 128 // top-level members of a body

// parse is the state of one walk.
type parse struct {
	jsonscan.Cursor

	body    []byte
	in      Input
	schemas *schemas
	call    gateway.Call

	members []member
	edits   []edit // within kept members, in order
	ignored []string
	media   []medium

	maxTokens           int
	maxCompletionTokens int
	prompts             int // of a completions request
	logprobs            bool
	topLogprobs         int // 1 + the value; 0 when absent
	minTokens           int
	streamOptions       bool
	schemaBytes         int // of all schemas so far
	patternCost         int // of all their patterns
	tools               []string
	toolChoice          choice
	effort              string // of reasoning; empty: not named
	store               bool
	metadata            []byte
}

// reset forgets the request but keeps small buffers for the next one.
func (p *parse) reset() {
	members, edits, tools := p.members[:0], p.edits[:0], p.tools
	clear(p.members)
	clear(p.edits)
	clear(tools)
	*p = parse{members: members, edits: edits, tools: tools[:0]}
	if cap(edits) > 1024 {
		p.edits = nil
	}
}

// document walks the top level.
func (p *parse) document(table policy) {
	if p.Kind() == jsonscan.Invalid && p.Offset() == len(p.body) {
		p.Fail(&Problem{Message: "The body of the request is empty. Send a JSON object."})
		return
	}
	if k := p.Kind(); k != jsonscan.Object && k != jsonscan.Invalid {
		p.Skip()
		if p.End(); p.Err() == nil {
			p.Fail(&Problem{Code: codeType, Message: "The body of the request must be a JSON object, but is " + k.String() + "."})
		}
		return
	}
	for m := p.Object(); m.Next(); {
		p.member(table, m.Name(), m.At())
	}
	p.End()
}

// member applies the policy to one top-level member.
func (p *parse) member(table policy, name []byte, at int) {
	for i := range p.members {
		if p.members[i].name == string(name) {
			p.refuse(at, codeValue, "%s is given twice.")
			return
		}
	}
	if len(p.members) == maxMembers {
		p.Fail(&Problem{Code: codeValue, Message: "The body has too many members."})
		return
	}
	r, known := table[string(name)]
	m := member{start: at, value: p.Offset()}
	if known {
		m.name = r.name
	} else {
		m.name = string(name)
	}
	switch {
	case p.Kind() == jsonscan.Null && r.action != require:
		p.Null() // as if it were absent
	case r.action == refused:
		p.refuse(at, codeParameter, "%s is not supported. %s", r.why)
	case r.read != nil:
		m.keep = r.action != take
		p.members = append(p.members, m)
		r.read(p)
		p.members[len(p.members)-1].end = p.Offset()
		return
	default:
		p.Skip()
		if m.keep = r.action == pass && known; !m.keep {
			p.ignore(m.name)
		}
	}
	m.end = p.Offset()
	p.members = append(p.members, m)
}

// ignore names a member that has no effect.
func (p *parse) ignore(name string) {
	if len(p.ignored) < maxMembers && !slices.Contains(p.ignored, name) {
		p.ignored = append(p.ignored, name)
	}
}

// settle checks what only the whole body can tell.
func (p *parse) settle() {
	if p.Err() != nil {
		return
	}
	for _, name := range required(p.in.Operation) {
		if p.find(name) == nil {
			p.missing(0, name)
			return
		}
	}
	p.settleStore()
	p.settleLimits()
	model := p.model()
	p.settleTemplate(model)
	p.settleEffort(model)
	p.settleRoles(model)
	p.settleTools()
	p.settleFormat()
	p.settleMedia() // last: what is refused anyway is not fetched
}

func required(op gateway.Operation) []string { return []string{"model", promptMember(op)} }

// promptMember is the member that holds what the model shall read.
func promptMember(op gateway.Operation) string {
	switch op {
	case gateway.Completions:
		return "prompt"
	case gateway.Embeddings:
		return "input"
	default:
		return "messages"
	}
}

// settleLimits decides between the two names of the output's bound.
func (p *parse) settleLimits() {
	p.call.MaxTokens = p.maxTokens
	if p.maxCompletionTokens > 0 {
		p.call.MaxTokens = p.maxCompletionTokens
		if m := p.find("max_tokens"); m != nil && m.keep {
			m.keep = false
			p.ignore("max_tokens")
		}
	}
	switch {
	case p.call.MaxTokens > 0 && p.minTokens > p.call.MaxTokens:
		p.refuse(p.find("min_tokens").start, codeValue, "%s is above the bound on output tokens.")
	case p.in.Operation == gateway.Chat && p.topLogprobs > 0 && !p.logprobs:
		p.refuse(p.find("top_logprobs").start, codeValue, "%s needs 'logprobs' to be true.")
	case p.streamOptions && !p.call.Stream:
		p.refuse(p.find("stream_options").start, codeValue, "%s may be set only where 'stream' is true.")
	}
	p.call.IncludeUsage = p.call.IncludeUsage && p.call.Stream
	if p.prompts > 1 {
		p.call.Choices *= p.prompts
	}
}

// QueueTTL reads the x-weir-queue-ttl header: seconds, or a duration such as
// "1m30s" or "500ms". It is a *Problem unless it is positive and at most a day.
func QueueTTL(header string) (time.Duration, error) {
	if header == "" {
		return 0, nil
	}
	ttl, err := time.ParseDuration(header)
	if err != nil {
		ttl, err = time.ParseDuration(header + "s")
	}
	if err != nil || ttl <= 0 || ttl > 24*time.Hour {
		return 0, &Problem{
			Code: codeValue, Param: "x-weir-queue-ttl",
			Message: "The header x-weir-queue-ttl must be a positive number of seconds, or a duration such as 1m30s or 500ms, of at most 24h.",
		}
	}
	return ttl, nil
}
