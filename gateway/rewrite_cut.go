package gateway

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

const finishKey = `"finish_reason":"`

// noteFinish remembers the choices that a chunk ends.
func (r *rewriter) noteFinish(p []byte) {
	if !bytes.Contains(p, []byte(finishKey)) {
		return
	}
	gjson.GetBytes(p, "choices").ForEach(func(_, choice gjson.Result) bool {
		if choice.Get("finish_reason").Type == gjson.String {
			r.finished = append(r.finished, int(choice.Get("index").Int()))
		}
		return true
	})
}

// cut ends the choices that the engine hasn't, and tells the usage to who asked.
func (r *rewriter) cut(out []byte, choices int) (shown []byte, open bool) {
	r.meter.cut = true
	if r.ownHead() == nil {
		r.head = append(append(append([]byte(`{`+modelKey), r.model...), r.tier...), ',')
	}
	delta := `"delta":{}`
	if r.texts {
		delta = `"text":""`
	}
	for i := range choices {
		if slices.Contains(r.finished, i) {
			continue
		}
		open = true
		out = append(append(out, "data: "...), r.head...)
		out = strconv.AppendInt(append(out, `"choices":[{"index":`...), int64(i), 10)
		out = append(append(append(out, ','), delta...), `,"logprobs":null,"finish_reason":"length"}]`...)
		if r.usage {
			out = append(out, `,"usage":null`...)
		}
		out = append(append(append(out, ','), budgetNote...), "}\n\n"...)
	}
	if !open {
		r.meter.cut = false
		return out, false
	}
	return r.closing(out), true
}

// cut ends a response as its engine would at its bound.
func (n *native) cut(out []byte, _ int) (shown []byte, open bool) {
	u, _ := n.meter.usage(false)
	out = append(out, `data: {"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":`...)
	out = strconv.AppendInt(out, u.Input(), 10)
	out = strconv.AppendInt(append(out, `,"output_tokens":`...), u.Output+u.Reasoning, 10)
	return append(append(append(out, `}},`...), budgetNote...), "}\n\n"...), true
}

// bounded puts a bound on each choice's output into an engine's body, in place
// of the caller's. A bound of 0 changes nothing.
func bounded(body []byte, c *Call, bound int) []byte {
	if bound == 0 {
		return body
	}
	names := []string{"max_tokens", "max_completion_tokens"} // engines prefer one or the other
	switch c.Operation {
	case Completions:
		names = names[:1]
	case Responses:
		names = []string{"max_output_tokens"}
	default:
	}
	for _, name := range names {
		if c.MaxTokens > 0 { // else there is none
			body = dropMember(body, name)
		}
		body = append(append(append(body[:len(body)-1], `,"`...), name...), `":`...)
		body = append(strconv.AppendInt(body, int64(bound), 10), '}')
	}
	return body
}

// dropMember removes a member of the outermost object.
func dropMember(p []byte, name string) []byte {
	v := gjson.GetBytes(p, name)
	if !v.Exists() {
		return p
	}
	key := bytes.LastIndex(p[:v.Index], []byte(`"`+name+`"`))
	var e edits
	e.add(without(p, span{key, v.Index, v.Index + len(v.Raw)}))
	return e.apply(nil, p)
}
