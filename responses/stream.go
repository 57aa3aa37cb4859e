package responses

import (
	"errors"
	"time"

	"github.com/tidwall/gjson"

	"weir/gateway"
)

// stream is the one state machine from what an engine says, in chunks of a chat
// answer or in events of its own, to the events of a response. It only appends to out, which its owner sends and
// empties: whole events, in order, each with the next sequence number.
//
// The order that clients rely on: created and in_progress; then for each item
// added, its parts, deltas and dones, and done; and one terminal event with
// the whole object. An item is opened by the first piece of it that isn't
// empty. A text or reasoning item ends where another kind begins; calls may be
// open beside one another.
type stream struct {
	shape  shape
	now    func() time.Time
	tools  *toolset
	serial bool                     // only the first call counts
	seal   func(text string) string // nil: reasoning is not sealed
	render func() []byte            // another object than a response; nil: a response

	out   []byte
	seq   int
	items []*item
	text  *item         // the open message or reasoning item
	calls map[int]*item // open calls by the engine's index
	held  string        // white space that may turn out to stand between two items

	engine nativeItems // of an engine's own stream of events

	state   state
	finish  string // the engine's reason
	failure *Failure
	ended   bool // a terminal event was appended
}

// errNoChunk is what an engine sends that is no chunk of an answer.
var errNoChunk = errors.New("no chunk of a chat answer")

// begin appends what every stream begins with.
func (s *stream) begin(status string) {
	if s.seq == 0 {
		s.state.status = status
		s.lifecycle(eventCreated)
	}
	if status == Queued {
		s.lifecycle("response.queued")
		return
	}
	s.state.status = InProgress
	s.lifecycle("response.in_progress")
}

// anew appends what a stream begins with, as if nothing had come before, but with
// the numbers that follow: none stands for two events.
func (s *stream) anew(next int) {
	s.seq, s.state.status = next, Queued
	s.lifecycle(eventCreated)
	s.lifecycle("response.queued")
}

// eventCreated is the first event of every stream, and no other.
const eventCreated = "response.created"

// chunk takes one chunk, as the gateway passes it on.
func (s *stream) chunk(data []byte) error {
	v := gjson.ParseBytes(data)
	if !v.IsObject() {
		return errNoChunk
	}
	if u := v.Get("usage"); u.IsObject() {
		s.state.usage = usageOf(u)
	}
	if tier := v.Get("service_tier"); tier.Type == gjson.String && tier.Str != "" {
		s.state.tier = tier.Str
	}
	choice := v.Get("choices.0")
	if !choice.Exists() || s.finish != "" {
		return nil
	}
	delta := choice.Get("delta")
	s.reasoning(textOf(delta, "reasoning", "reasoning_content"))
	s.message(partText, textOf(delta, "content"), choice.Get("logprobs.content"))
	s.message(partRefusal, textOf(delta, "refusal"), gjson.Result{})
	delta.Get("tool_calls").ForEach(func(_, call gjson.Result) bool {
		s.call(call)
		return true
	})
	s.noteEnd(v)
	if finish := choice.Get("finish_reason"); finish.Type == gjson.String && finish.Str != "" {
		s.finish = finish.Str
		s.close(s.cutOff())
	}
	return nil
}

// noteEnd notes why the gateway itself ended an answer.
func (s *stream) noteEnd(v gjson.Result) {
	if v.Get("weir.code").Str == string(gateway.BudgetExhausted) {
		s.state.code = string(gateway.BudgetExhausted)
	}
}

// textOf is the first of the named members that isn't empty, still escaped:
// engines send reasoning under either name, or both.
func textOf(v gjson.Result, names ...string) string {
	for _, name := range names {
		if x := v.Get(name); x.Type == gjson.String && len(x.Raw) > 2 {
			return inner(x.Raw)
		}
	}
	return ""
}

func usageOf(v gjson.Result) *Usage {
	u := &Usage{Input: v.Get("prompt_tokens").Int(), Output: v.Get("completion_tokens").Int()}
	u.Cached = min(v.Get("prompt_tokens_details.cached_tokens").Int(), u.Input)
	reasoning := v.Get("completion_tokens_details.reasoning_tokens")
	if !reasoning.Exists() {
		reasoning = v.Get("reasoning_tokens")
	}
	u.Reasoning = min(reasoning.Int(), u.Output)
	return u
}

// cutOff reports that the engine stopped before the model did.
func (s *stream) cutOff() bool { return s.finish == "length" || s.finish == "content_filter" }

// complete appends the terminal event of an answer that the engine ended.
func (s *stream) complete() {
	s.settle(s.outcome())
	s.terminal()
}

// outcome is the status of an answer that the engine ended, and the reason if
// it is incomplete.
func (s *stream) outcome() (status, reason string) {
	switch s.finish {
	case "length":
		return Incomplete, "max_output_tokens"
	case "content_filter":
		return Incomplete, "content_filter"
	default:
		return Completed, ""
	}
}

// settle fixes the final state: what is stored is what the terminal event
// shows. Only the first call counts.
func (s *stream) settle(status, reason string) {
	if Terminal(s.state.status) {
		return
	}
	if len(s.items) == 0 && s.held == "" && status == Completed {
		s.open(typeMessage)
		s.part(partText)
	}
	if status == Failed {
		s.abandon()
	} else {
		s.close(status != Completed)
	}
	s.state.status, s.state.reason, s.state.completedAt = status, reason, s.now()
	if status != Completed && status != Incomplete {
		s.state.completedAt = time.Time{}
	}
	s.state.output = s.output()
}

// Failure is why a response has no good end, for the caller.
type Failure struct {
	Kind    string // error.type
	Code    string
	Message string
}

// fail fixes the state of an answer that broke off, or that could not be kept.
func (s *stream) fail(f Failure) {
	if s.ended || s.failure != nil {
		return
	}
	if Terminal(s.state.status) {
		s.state.status, s.state.reason = InProgress, ""
	}
	s.state.failure = `{"code":` + quote(f.Code) + `,"message":` + quote(f.Message) + `}`
	s.settle(Failed, "")
	s.failure = &f
}

// terminal appends the event that ends the stream, once.
func (s *stream) terminal() {
	if s.ended {
		return
	}
	s.ended = true
	if s.failure != nil {
		s.errorEvent(*s.failure)
	}
	name := "response." + s.state.status
	if s.state.status == Cancelled { // there is no such event
		name = "response.incomplete"
	}
	s.lifecycle(name)
	s.out = append(s.out, "data: [DONE]\n\n"...)
}

// terminalOf appends the event that ends the stream of a response that was ended
// elsewhere: with the object that is stored.
func (s *stream) terminalOf(object []byte) {
	s.ended = true
	v := gjson.ParseBytes(object)
	status := v.Get("status").Str
	if status == Failed {
		s.errorEvent(Failure{Kind: "server_error", Code: v.Get("error.code").String(), Message: v.Get("error.message").String()})
	}
	if status == Cancelled { // there is no such event
		status = Incomplete
	}
	s.event("response." + status)
	s.out = append(append(s.out, `,"response":`...), object...)
	s.endEvent()
	s.out = append(s.out, "data: [DONE]\n\n"...)
}

// object is the response as it is now.
func (s *stream) object() []byte {
	if s.render != nil {
		return s.render()
	}
	return s.shape.append(nil, s.state)
}

// output joins the items that are done.
func (s *stream) output() []byte {
	var b []byte
	for i, it := range s.items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, it.final...)
	}
	return b
}
