package catalogue

import "slices"

// Template is what a model's chat template can take. The zero value is what
// most templates are like.
type Template struct {
	DeveloperRole  bool   `yaml:"developer_role,omitempty"`  // it knows developers; else their messages are a system's
	SystemMessages string `yaml:"system_messages,omitempty"` // first (the default): one, at the beginning; anywhere
}

// SystemAnywhere is a Template's word for a template that takes system messages
// in the middle of a conversation.
const SystemAnywhere = "anywhere"

// efforts are OpenAI's words for how long a model may think, the least first.
func efforts() []string {
	return []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
}

// Effort is the reasoning effort that the model is told of for the one that
// was asked for, one of OpenAI's words: the least of its own that is as much,
// else its most. A model that lists none takes those that every engine knows.
func (m *Model) Effort(asked string) string {
	own := m.Efforts
	if len(own) == 0 {
		own = []string{"none", "low", "medium", "high"}
	}
	all := efforts()
	most := ""
	for i, word := range all {
		if !slices.Contains(own, word) {
			continue
		}
		if most = word; i >= slices.Index(all, asked) {
			break
		}
	}
	return most
}

func (m *Model) validateTemplate(c *complaints) {
	if s := m.Template.SystemMessages; s != "" && s != "first" && s != SystemAnywhere {
		c.add("model %s: template: system_messages is %q: write first or anywhere", m.Name, s)
	}
	for _, e := range m.Efforts {
		if !slices.Contains(efforts(), e) {
			c.add("model %s: reasoning_efforts: %q: write some of %q", m.Name, e, efforts())
		}
	}
}
