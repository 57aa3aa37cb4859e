package responses

import (
	"context"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// A compaction has the model itself write down what matters of a long context.
// What it wrote goes to the caller sealed: the model reads it again where the
// caller sends it back, in place of all that it stands for.
const (
	summarise = `"The conversation so far is about to be replaced by what you write now, and you will go on from that alone. ` +
		`Write down everything that you need: what the user wants and has decided, what was done and found out, with exact names, paths, numbers and quotations where they matter, ` +
		`what is still open, and what you were about to do next. Do not continue the work, do not call tools, and address nobody: write the notes only."`

	// Stands before the notes when the model reads them.
	afterCompaction = "The earlier conversation was replaced by these notes, which you wrote:\n\n"
)

// Compact loads what the request goes on from and makes the call that
// summarises it. Its answer is one document, whatever the request says of
// streams, and it is kept nowhere. The errors are those of Prepare.
func (s *Service) Compact(ctx context.Context, from Caller, c *Create) (*Run, error) {
	c.Store, c.Stream, c.Background = false, false, false
	c.tools, c.choice = &toolset{}, choice{echo: `"auto"`}
	c.Input = append(c.Input, textMessage("user", summarise))
	r, err := s.begin(ctx, from, c, NewID(), s.deps.Now())
	if err != nil {
		return nil, err
	}
	r.aim()
	c.Input = c.Input[:len(c.Input)-1]
	r.stream.render = r.compaction
	return r, nil
}

// compaction is the object of a summary: what the user said, as it was, and
// the notes.
func (r *Run) compaction() []byte {
	s := r.stream
	b := append([]byte(`{"id":"`), r.id...)
	b = appendInt(append(b, `","object":"response.compaction","created_at":`...), int(r.created.Unix()))
	b = append(b, `,"output":[`...)
	for _, it := range append(slices.Clip(r.history.Items), r.create.Input...) {
		if it.Type == typeMessage && gjson.GetBytes(it.JSON, "role").Str == "user" {
			b = append(append(b, it.Shown()...), ',')
		}
	}
	sealed := r.service.deps.Sealer.Seal(r.from.Principal.Tenant, r.create.Model, afterCompaction+s.said())
	b = append(b, `{"id":"`+newID(compactionPrefix)+`","type":"compaction","encrypted_content":`+quote(sealed)+`}]`...)
	return append(appendUsage(append(b, `,"usage":`...), s.state.usage), '}')
}

// said is the text of the answer.
func (s *stream) said() string {
	var texts []string
	for _, it := range s.items {
		if it.kind == typeMessage {
			for _, part := range gjson.GetBytes(it.final, "content.#.text").Array() {
				texts = append(texts, part.String())
			}
		}
	}
	return strings.Join(texts, "\n")
}

// noCompaction is what to answer where an item of ours can't be read: without
// it the model would not know what it was talking about.
func noCompaction(id string) error {
	return problem("input", codeValue, "The compaction item '%s' can't be read: it was made for another model, by another organization or elsewhere.", clip(id))
}
