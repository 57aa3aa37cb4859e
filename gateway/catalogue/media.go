package catalogue

import "slices"

// What a model may take beside text.
const (
	Images = "image"
	Audio  = "audio"
	Video  = "video"
)

// How a model takes files: TextFiles as their text, NativeFiles as they are.
const (
	TextFiles   = "text"
	NativeFiles = "native"
)

// Takes reports whether the model may be given media of a modality. Of a model
// that lists none nobody knows but its engine.
func (m *Model) Takes(modality string) bool {
	return len(m.Modalities) == 0 || slices.Contains(m.Modalities, modality)
}

func (m Model) validateMedia(c *complaints) {
	for _, name := range m.Modalities {
		if name != "text" && name != Images && name != Audio && name != Video {
			c.add("model %s: modality %q: write text, image, audio or video", m.Name, name)
		}
	}
	if len(m.Modalities) > 0 && !slices.Contains(m.Modalities, "text") {
		c.add("model %s: modalities: text is missing", m.Name)
	}
	if m.Files != "" && m.Files != TextFiles && m.Files != NativeFiles {
		c.add("model %s: files: %q: write text or native", m.Name, m.Files)
	}
}
