package responses

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestAReplayOfAFinishedResponseIsAStreamThatAStrictReaderTakes(t *testing.T) {
	t.Parallel()
	for status, output := range map[string]string{
		Completed: `{"id":"rs_1","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"hm \"so\""}]},` +
			`{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"h\u00e9\n","annotations":[],"logprobs":[]}]},` +
			`{"id":"fc_1","type":"function_call","status":"completed","call_id":"call_1","name":"f","arguments":"{\"a\":1}"},` +
			`{"id":"ctc_1","type":"custom_tool_call","status":"completed","call_id":"call_2","name":"g","input":"x"}`,
		Incomplete: `{"id":"msg_1","type":"message","status":"incomplete","role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`,
		Failed:     "", Cancelled: "",
	} {
		kept := newStream(t, `{"model":"m","input":"x"}`)
		kept.state = state{status: status, output: []byte(output), usage: &Usage{Input: 1}, tier: "default"}
		if status == Failed {
			kept.state.failure = `{"code":"c","message":"m"}`
		}
		object := string(kept.object())
		p := replay([]byte(object))
		if err := (&oracle{}).read(p); err != nil {
			t.Errorf("%s: %v\n%s", status, err, p)
		}
		events := bytes.Split(bytes.TrimSpace(p), []byte("\n\n"))
		_, last, _ := strings.Cut(string(events[len(events)-2]), "data: ")
		if got := gjson.Get(last, "response").Raw; got != object {
			t.Errorf("%s ends with %s", status, got)
		}
		if first := string(events[0]); !strings.Contains(first, `"status":"in_progress"`) || strings.Contains(first, "msg_1") {
			t.Errorf("%s begins with %s", status, first)
		}
	}
}

func TestAReaderGetsOnlyTheEventsThatItLacks(t *testing.T) {
	t.Parallel()
	s := &stream{}
	for range 3 {
		s.keepalive()
	}
	all := string(s.out) + "data: [DONE]\n\n"
	for after, want := range map[int]int{-1: 3, 0: 2, 1: 1, 2: 0, 9: 0} {
		got := string(eventsAfter([]byte(all), after))
		if n := strings.Count(got, "event: keepalive"); n != want || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("after %d: %q", after, got)
		}
	}
}
