package responses

import (
	"testing"
)

// An answer that ends where the caller's money does is incomplete for a reason
// that clients know, and says beside it which bound it was.
func TestAnAnswerThatEndsWhereTheMoneyDoesIsIncomplete(t *testing.T) {
	t.Parallel()
	const note = `,"weir":{"code":"budget_exhausted"}}`
	for _, tt := range []struct {
		name string
		feed func(t *testing.T, s *stream)
		want string
	}{
		{"of a chat", func(t *testing.T, s *stream) {
			t.Helper()
			cut := finished("length")
			play(t, s, delta(`"content":"Hi"`), cut[:len(cut)-1]+note, used)
		}, `{"reason":"max_output_tokens","code":"budget_exhausted"}`},
		{"of a chat, at the caller's own bound", func(t *testing.T, s *stream) {
			t.Helper()
			play(t, s, delta(`"content":"Hi"`), finished("length"), used)
		}, `{"reason":"max_output_tokens"}`},
		{"of an engine's own stream", func(t *testing.T, s *stream) {
			t.Helper()
			s.engine = nativeItems{}
			s.begin(InProgress)
			for _, event := range []string{
				`{"type":"response.output_text.delta","output_index":0,"delta":"Hi"}`,
				`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":3,"output_tokens":1}}` + note,
			} {
				if err := s.native([]byte(event)); err != nil {
					t.Fatal(err)
				}
			}
			s.complete()
		}, `{"reason":"max_output_tokens","code":"budget_exhausted"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, plainRequest)
			tt.feed(t, s)
			got := object(t, s)
			if got.Get("status").Str != Incomplete || got.Get("incomplete_details").Raw != tt.want {
				t.Errorf("%s, %s", got.Get("status"), got.Get("incomplete_details").Raw)
			}
			if got.Get("output.0.content.0.text").Str != "Hi" || got.Get("usage.output_tokens").Int() == 0 {
				t.Errorf("what came before was lost: %s", got.Raw)
			}
		})
	}
}
