package epp

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const chatStream = `data: {"choices":[{"delta":{"content":"say \"usage\": {}"}}]}

data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":16}}}

data: [DONE]

`

func TestUsageIsFoundHoweverAnAnswerIsCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		stream     bool
		want       usage
	}{
		{"a chat's stream", chatStream, true, usage{14, 16, 7}},
		{"a chat's stream with CRLF", strings.ReplaceAll(chatStream, "\n", "\r\n"), true, usage{14, 16, 7}},
		{"a stream without a last line end", strings.TrimRight(strings.Split(chatStream, "data: [DONE]")[0], "\n"), true, usage{14, 16, 7}},
		{"a response's stream", `data: {"type":"response.completed","response":{"usage":{"input_tokens":9,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}}` + "\n\n", true, usage{5, 4, 3}},
		{"a document", `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`, false, usage{5, 0, 2}},
		{"a document that claims more cached than read", `{"usage":{"prompt_tokens":5,"completion_tokens":-2,"prompt_tokens_details":{"cached_tokens":50}}}`, false, usage{0, 5, 0}},
		{"no usage", `{"choices":[]}`, false, usage{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				s := usageScanner{stream: c.stream}
				for rest := []byte(c.text); len(rest) > 0; {
					n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
					s.add(rest[:n])
					rest = rest[n:]
				}
				s.end()
				if s.found != c.want {
					t.Fatalf("found %+v, want %+v", s.found, c.want)
				}
			})
		})
	}
}

func TestWhatIsTooLongIsSkippedAndNotKept(t *testing.T) {
	t.Parallel()
	s := usageScanner{stream: true}
	for range 100 {
		s.add([]byte(strings.Repeat("x", 10_000)))
		if len(s.rest) > maxLine {
			t.Fatalf("%d bytes are kept", len(s.rest))
		}
	}
	s.add([]byte("\n" + chatStream))
	if want := (usage{14, 16, 7}); s.found != want {
		t.Errorf("after a long line found %+v, want %+v", s.found, want)
	}
	d := usageScanner{}
	for range 1000 {
		d.add([]byte(strings.Repeat(" ", 10_000)))
	}
	if len(d.rest) > maxDocument {
		t.Errorf("%d bytes of a document are kept", len(d.rest))
	}
}
