package gateway

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/tidwall/gjson"
)

// Keys as they stand in an engine's JSON. See splice.go.
const (
	modelKey    = `"model":`
	usageKey    = `"usage":`
	tierKey     = `"service_tier":`
	choicesKey  = `"choices":`
	errorKey    = `"error":`
	choicesNone = `"choices":[]`
	choicesSome = `"choices":[{`
	abortWord   = `"abort"`
	callsKey    = `"tool_calls":`
)

// isNoise reports whether a member is one that engines add for their own
// machinery; at whatever depth it stands, it says nothing to a caller and may
// show too much. The tier is noise where ours replaces the engine's.
func (r *rewriter) isNoise(name []byte) bool {
	switch string(name) {
	case "prompt_token_ids", "token_ids", "prompt_logprobs", "kv_transfer_params", "matched_stop", "sglext",
		"queue_time": // usage has our own
		return true
	case "service_tier":
		return len(r.tier) > 0
	case "cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "timings":
		return r.hideCache // all tell what came from the cache
	default:
		return false
	}
}

// rewriter turns what an engine answers into what the caller may see: the
// public model name, the tier served, usage only where it was asked for, no
// engine noise. All else stays as it is, byte for byte. One rewriter serves
// one answer.
type rewriter struct {
	meter *meter
	model []byte // public name as a JSON string
	tier  []byte // `,"service_tier":"..."`; empty when the caller named none
	usage bool   // the caller asked for the closing usage chunk
	queue []byte // `"queue_time":...`, the last member of the usage that the caller sees
	keep  bool   // nothing about the model member changes

	hideCache bool // the caller may not know what came from a cache

	old, new []byte // the model member as this engine writes it, and as we do
	first    []byte // the first chunk, of which the head is made when it is needed
	head     []byte // start of a chunk of our own
	closed   bool   // the closing usage chunk has passed
	output   bool   // some event had output
	calls    toolCalls
	cuttable bool  // the answer may be cut: see cut
	texts    bool  // a completion's, not a chat's
	finished []int // choices that have their finish reason; of one that may be cut
	form     template
	edits    edits // of the present chunk
}

// newRewriter makes the rewriter of one answer.
func newRewriter(m *meter, public, engine, tier string, usage bool, queued time.Duration) *rewriter {
	r := &rewriter{
		meter: m, model: quoteJSON(public), usage: usage, queue: queueMember(queued),
		keep: public == engine && tier == "",
	}
	if tier != "" {
		r.tier = append([]byte(`,`+tierKey), quoteJSON(tier)...)
	}
	return r
}

// chunk appends what the caller shall see of one event's data to out, as a
// whole event. The error says that the engine gave up, or doesn't speak the
// protocol.
func (r *rewriter) chunk(out, p []byte) ([]byte, *Error) {
	p = bytes.TrimSpace(p)
	if len(p) < 2 || p[0] != '{' || p[len(p)-1] != '}' {
		return out, &Error{Cause: UpstreamInvalid, Err: errNotJSON}
	}
	if output, usage, ok := r.form.match(p); ok {
		r.meter.output++
		if r.form.counted {
			r.meter.saw(usage)
		}
		out = append(append(append(out, "data: "...), r.form.headOut...), output...)
		return append(append(out, r.form.tailOut...), "\n\n"...), nil
	}
	if err := engineError(p); err != nil {
		return out, err
	}
	if r.first == nil && (r.usage || r.cuttable) {
		r.keepFirst(p)
	}
	if r.cuttable {
		r.noteFinish(p)
	}
	at := outputAt(p)
	if at >= 0 {
		r.output = true
		r.meter.output++
	}
	calls := bytes.Contains(p, []byte(callsKey))
	if calls {
		p = r.calls.reindex(p)
	}
	show := r.noteUsage(p)
	if show == usageDropsChunk {
		return out, nil
	}
	whole := len(p)
	p = r.edit(p, show)
	if at >= 0 && !calls && len(p) == whole {
		r.form.learn(p, at, &r.edits)
	}
	out = append(out, "data: "...)
	return append(r.edits.apply(out, p), "\n\n"...), nil
}

// document appends a whole JSON answer to out.
func (r *rewriter) document(out, p []byte) ([]byte, *Error) {
	p = bytes.TrimSpace(p)
	if len(p) < 2 || p[0] != '{' || !gjson.ValidBytes(p) {
		return out, &Error{Cause: UpstreamInvalid, Err: errNotJSON}
	}
	if err := engineError(p); err != nil {
		return out, err
	}
	if u := usageMember(p); u.found() && p[u.value] == '{' {
		r.meter.saw(p[u.value:u.end])
	}
	r.meter.noteTiers(p)
	p = r.edit(p, usageTimed)
	return r.edits.apply(out, p), nil
}

// edit collects what has to change in p. Where two changes meet, which takes
// a member that we cut beside or within another one, it cuts noise until they
// don't; so it returns the p that the edits are for.
func (r *rewriter) edit(p []byte, show usageShown) []byte {
	for {
		r.edits.reset()
		r.edits.cut(p, r.isNoise)
		r.editUsage(p, show)
		r.editModel(p)
		if !r.edits.overlap {
			return p
		}
		r.edits.reset()
		r.edits.cut(p, r.isNoise)
		if len(r.edits.list) == 0 {
			r.editUsage(p, show) // the name stood within the usage
			return p
		}
		r.edits.list = r.edits.list[:1]
		p = r.edits.apply(nil, p)
	}
}

// editModel puts the public name and the tier in the place of the model
// member. The engine's form of it is learnt once for the whole answer.
func (r *rewriter) editModel(p []byte) {
	if r.keep {
		return
	}
	if i := bytes.Index(p, r.old); len(r.old) > 0 && i >= 0 {
		r.edits.add(splice{from: i, to: i + len(r.old), with: r.new})
		return
	}
	v := gjson.GetBytes(p, "model")
	if v.Type != gjson.String {
		return
	}
	from, to := bytes.LastIndex(p[:v.Index], []byte(`"model"`)), v.Index+len(v.Raw)
	r.old = bytes.Clone(p[from:to])
	r.new = append(append([]byte(modelKey), r.model...), r.tier...)
	r.edits.add(splice{from: from, to: to, with: r.new})
}

// outputAt finds the first piece of the answer in a chunk: the opening quote of
// a text that is not empty. It is -1 for a chunk that has none, such as the
// first one, which only names the role, and the one with the finish reason.
func outputAt(p []byte) int {
	for _, key := range [...]string{
		`"content":`, `"reasoning_content":`, `"reasoning":`, `"text":`, `"arguments":`, `"refusal":`,
	} {
		for at := 0; ; {
			i := bytes.Index(p[at:], []byte(key))
			if i < 0 {
				break
			}
			at += i + len(key)
			for at < len(p) && p[at] == ' ' {
				at++
			}
			if at+1 < len(p) && p[at] == '"' && p[at+1] != '"' {
				return at
			}
		}
	}
	return -1
}

// quoteJSON writes s as a JSON string.
func quoteJSON(s string) []byte { return appendJSON(make([]byte, 0, len(s)+2), s) }

// appendJSON appends s as a JSON string. Most are names, which are written as
// they are.
func appendJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(s)
			if err != nil { // a string always marshals
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
