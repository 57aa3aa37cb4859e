package enginesim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nativeFault is what goes wrong with one stream of a response. Each is one that
// some engine or gateway was seen with.
type nativeFault struct {
	noItemDone, wrongSequence, sameIDs, foreignIDs, outOfOrder, noUsage, emptyOutput, oddParts bool
}

func (f *nativeFault) raise(name string) error {
	for known, at := range map[string]*bool{
		"no-item-done": &f.noItemDone, "wrong-sequence": &f.wrongSequence, "same-ids": &f.sameIDs, "foreign-ids": &f.foreignIDs,
		"items-out-of-order": &f.outOfOrder, "no-usage": &f.noUsage, "empty-output": &f.emptyOutput, "odd-parts": &f.oddParts,
	} {
		if known == name {
			*at = true
			return nil
		}
	}
	return fmt.Errorf("unknown name")
}

// voice tells an answer as the events of a response: one item for each segment.
type voice struct {
	fault nativeFault
	id    string
	seq   int
	part  int // pieces so far, for indexes that grow
	ids   map[int]string
}

func newVoice(f nativeFault) *voice {
	return &voice{fault: f, id: "resp_" + randomText(), ids: map[int]string{}}
}

// event sends one, whose members begin with a comma.
func (v *voice) event(s *stream, kind, members string) error {
	seq := v.seq
	if v.seq++; v.fault.wrongSequence {
		seq = 7 - v.seq%3
	}
	return s.named("response."+kind, []byte(`{"type":"response.`+kind+`","sequence_number":`+strconv.Itoa(seq)+members+`}`))
}

func (v *voice) begin(s *stream, j *job) error {
	for _, kind := range []string{"created", "in_progress"} {
		if err := v.event(s, kind, `,"response":`+v.object(j, "in_progress", "", "null")); err != nil {
			return err
		}
	}
	return s.flush()
}

// advance tells the tokens that were made since the last time.
func (v *voice) advance(s *stream, j *job, c *choice, made int) error {
	for c.sent < made {
		seg, at := &c.plan.segments[c.seg], c.tok
		index := c.seg
		c.sent++
		if c.tok++; c.tok == len(seg.ends) {
			c.seg, c.tok = c.seg+1, 0
		}
		if at == 0 {
			if err := v.open(s, seg, index, len(c.plan.segments)); err != nil {
				return err
			}
		}
		if err := v.piece(s, j, seg, v.place(seg, index, len(c.plan.segments)), seg.piece(at)); err != nil {
			return err
		}
		if at == len(seg.ends)-1 {
			if err := v.close(s, c, index); err != nil {
				return err
			}
		}
	}
	c.finished = c.sent == c.seq.total
	return nil
}

// idOf is the id of an item, which a fault may change whenever it is asked for.
func (v *voice) idOf(seg *segment, index int) string {
	prefix := "msg_"
	switch seg.part {
	case reasoningPart:
		prefix = "rs_"
	case toolPart:
		prefix = "fc_"
	default:
	}
	switch {
	case v.fault.sameIDs:
		return "msg_0"
	case v.fault.foreignIDs, v.ids[index] == "":
		v.ids[index] = prefix + randomText()
	}
	return v.ids[index]
}

// outputIndex is where an item stands.
func (v *voice) outputIndex(index, items int) string {
	if v.fault.outOfOrder {
		index = items - 1 - index
	}
	return `,"output_index":` + strconv.Itoa(index)
}

// place says which item an event is about.
func (v *voice) place(seg *segment, index, items int) string {
	return v.outputIndex(index, items) + `,"item_id":` + quote(v.idOf(seg, index))
}

func (v *voice) open(s *stream, seg *segment, index, items int) error {
	if err := v.event(s, "output_item.added", v.outputIndex(index, items)+`,"item":`+v.item(seg, v.idOf(seg, index), "in_progress", "")); err != nil {
		return err
	}
	if seg.part == toolPart {
		return nil
	}
	kind := "content_part.added"
	if v.fault.oddParts && seg.part == reasoningPart {
		kind = "reasoning_part.added"
	}
	return v.event(s, kind, v.place(seg, index, items)+`,"content_index":`+v.contentIndex()+`,"part":`+partJSON(seg, ""))
}

// contentIndex is 0: an item of ours has one part. Some engines count on over
// items and tokens.
func (v *voice) contentIndex() string {
	if !v.fault.oddParts {
		return "0"
	}
	v.part++
	return strconv.Itoa(v.part)
}

func partJSON(seg *segment, text string) string {
	if seg.part == reasoningPart {
		return `{"type":"reasoning_text","text":` + quote(text) + `}`
	}
	return `{"type":"output_text","text":` + quote(text) + `,"annotations":[],"logprobs":[]}`
}

func (v *voice) piece(s *stream, j *job, seg *segment, place, text string) error {
	if text == "" {
		return nil
	}
	switch seg.part {
	case toolPart:
		return v.event(s, "function_call_arguments.delta", place+`,"delta":`+quote(text))
	case reasoningPart:
		return v.event(s, "reasoning_text.delta", place+`,"content_index":`+v.contentIndex()+`,"delta":`+quote(text))
	default:
		probs := ""
		if j.logprobs >= 0 {
			probs = string(j.appendLogprob(nil, text))
		}
		return v.event(s, "output_text.delta", place+`,"content_index":`+v.contentIndex()+`,"delta":`+quote(text)+`,"logprobs":[`+probs+`]`)
	}
}

// close ends an item.
func (v *voice) close(s *stream, c *choice, index int) error {
	if v.fault.noItemDone {
		return nil
	}
	seg, items := &c.plan.segments[index], len(c.plan.segments)
	place := v.place(seg, index, items)
	var err error
	switch seg.part {
	case toolPart:
		err = v.event(s, "function_call_arguments.done", place+`,"arguments":`+quote(seg.text))
	case reasoningPart:
		err = v.event(s, "reasoning_text.done", place+`,"content_index":0,"text":`+quote(seg.text))
	default:
		err = v.event(s, "output_text.done", place+`,"content_index":0,"text":`+quote(seg.text)+`,"logprobs":[]`)
	}
	if err == nil && seg.part != toolPart {
		err = v.event(s, "content_part.done", place+`,"content_index":0,"part":`+partJSON(seg, seg.text))
	}
	if err != nil {
		return err
	}
	return v.event(s, "output_item.done", v.outputIndex(index, items)+`,"item":`+v.item(seg, v.idOf(seg, index), statusOf(c, index), seg.text))
}

// statusOf is incomplete for what the limit cut off.
func statusOf(c *choice, index int) string {
	if c.plan.finish == "length" && index == len(c.plan.segments)-1 {
		return "incomplete"
	}
	return "completed"
}

func (v *voice) item(seg *segment, id, status, text string) string {
	b := `{"id":` + quote(id) + `,"status":"` + status + `"`
	content := "[]"
	if text != "" {
		content = "[" + partJSON(seg, text) + "]"
	}
	switch seg.part {
	case toolPart:
		return b + `,"type":"function_call","call_id":` + quote(seg.id) + `,"name":` + quote(seg.name) + `,"arguments":` + quote(text) + `}`
	case reasoningPart:
		return b + `,"type":"reasoning","summary":[],"content":` + content + `}`
	default:
		return b + `,"type":"message","role":"assistant","content":` + content + `}`
	}
}

// end tells the response as a whole, in its last event.
func (v *voice) end(s *stream, j *job) error {
	if s.fault.noDone {
		return s.flush()
	}
	kind, object := v.final(j)
	if err := v.event(s, kind, `,"response":`+object); err != nil {
		return err
	}
	return s.flush()
}

// document is the answer to who wants no stream.
func (v *voice) document(j *job) json.RawMessage {
	_, object := v.final(j)
	return json.RawMessage(object)
}

func (v *voice) final(j *job) (status, object string) {
	c := j.choices[0]
	var items []string
	for i := range c.plan.segments {
		seg := &c.plan.segments[i]
		items = append(items, v.item(seg, v.idOf(seg, i), statusOf(c, i), seg.text))
	}
	if v.fault.outOfOrder {
		slices.Reverse(items)
	}
	if v.fault.emptyOutput {
		items = nil
	}
	u := j.usage()
	usage := fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}`,
		u.PromptTokens, j.cached(), u.CompletionTokens, c.plan.reasoningIn(int(c.seq.made.Load())), u.TotalTokens)
	if v.fault.noUsage {
		usage = "null"
	}
	status = "completed"
	if c.plan.finish == "length" {
		status = "incomplete"
	}
	return status, v.object(j, status, strings.Join(items, ","), usage)
}

// object is the response in a status.
func (v *voice) object(j *job, status, output, usage string) string {
	details := "null"
	if status == "incomplete" {
		details = `{"reason":"max_output_tokens"}`
	}
	return `{"id":` + quote(v.id) + `,"object":"response","created_at":` + strconv.FormatInt(j.created, 10) + `,"model":` + quote(j.model) +
		`,"status":"` + status + `","incomplete_details":` + details + `,"output":[` + output + `],"usage":` + usage + `,"error":null,"store":false}`
}
