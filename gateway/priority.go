package gateway

import (
	"strconv"

	"weir/gateway/catalogue"
)

// bodyFor is what to send to an endpoint: the lease's body, in which a scheduler
// of another process may have changed what is its own to change, and, where the
// pool's document wants that, the priority.
func (x *exchange) bodyFor(e *catalogue.Endpoint) []byte {
	body := x.lease.Body()
	if x.pool.Scheduler.IsShared() {
		body = assert(x.body, body)
	}
	if !x.tellPriority {
		return body
	}
	return withPriority(body, e.AllLabels()[catalogue.LabelEngine], x.priority)
}

// withPriority is the JSON object body with the priority in front, with the
// sign that the engine wants: vLLM serves lower numbers first, SGLang higher
// ones. It copies, because a retry may go to an engine of the other kind.
func withPriority(body []byte, engine string, priority int) []byte {
	switch engine {
	case "vllm", "sim":
		priority = -priority
	case sglang:
	default:
		return body // knows no priorities
	}
	if len(body) < 2 || body[0] != '{' {
		return body
	}
	out := make([]byte, 0, len(body)+24)
	out = strconv.AppendInt(append(out, `{"priority":`...), int64(priority), 10)
	if body[1] != '}' {
		out = append(out, ',')
	}
	return append(out, body[1:]...)
}
