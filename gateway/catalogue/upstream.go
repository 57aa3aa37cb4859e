package catalogue

import "slices"

// How a model's engines are asked for a response: as a chat, or at an endpoint
// of their own for it.
const (
	ChatUpstream      = "chat"
	ResponsesUpstream = "responses"
)

func (m Model) validateUpstream(c *complaints) {
	switch m.Upstream {
	case "", ChatUpstream:
	case ResponsesUpstream:
		if !slices.Contains(m.Operations, "chat") {
			c.add("model %s: upstream: responses: its operations lack chat", m.Name)
		}
	default:
		c.add("model %s: upstream: %q: write chat or responses", m.Name, m.Upstream)
	}
}
