package gateway

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What comes back is decoded as an engine would: of a name that is there twice
// the last one counts.
func TestNobodyElseDecidesWhatIsOurs(t *testing.T) {
	t.Parallel()
	const ours = `{"model":"org/engine","cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}],"max_tokens":9}`
	for name, test := range map[string]struct{ theirs, want string }{
		"nothing was changed":             {ours, ours},
		"another model":                   {`{"model":"other","cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}],"max_tokens":9}`, ours},
		"the salt of somebody else, last": {ours[:len(ours)-1] + `,"cache_salt":"theirs"}`, ours},
		"the salt in other letters":       {ours[:len(ours)-1] + `,"cache\u005fsalt":"theirs","\u006dodel":"x"}`, ours},
		"no salt":                         {`{"model":"org/engine","messages":[{"role":"user","content":"hi"}]}`, ours},
		"a document in place of a stream": {`{"stream":false,"messages":[{"role":"user","content":"hi"}]}`, ours},
		"no usage":                        {`{"stream_options":{"include_usage":false},"messages":[{"role":"user","content":"hi"}]}`, ours},
		"more output than is paid for":    {`{"max_tokens":100000,"max_completion_tokens":100000,"n":8,"messages":[{"role":"user","content":"hi"}]}`, ours},
		"its own members stay":            {`{"priority":-3,"messages":[]}`, `{"model":"org/engine","cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"priority":-3,"messages":[]}`},
		"members of members are no ours":  {`{"messages":[{"model":"x","n":1}]}`, `{"model":"org/engine","cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"messages":[{"model":"x","n":1}]}`},
		"no object":                       {`[1]`, ours},
		"an object and something behind":  {`{"messages":[]}{"cache_salt":"x"}`, ours},
		"half of an object":               {`{"messages":[`, ours},
		"nothing":                         {``, ours},
		"an empty object":                 {`{}`, `{"model":"org/engine","cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"max_tokens":9}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := assert([]byte(ours), []byte(test.theirs))
			var g, w map[string]any
			if err := json.Unmarshal(got, &g); err != nil {
				t.Fatalf("%v in %s", err, got)
			}
			if err := json.Unmarshal([]byte(test.want), &w); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(w, g); d != "" {
				t.Errorf("%s (-want +got):\n%s", got, d)
			}
		})
	}
}

func TestWhatARefusalOfAnEndpointPickerMeans(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status          int
		reason, message string
		want            Cause
	}{
		{429, "rejected-saturated", "", PoolFull},
		{429, "rejected-ttl-expired", "", QueueTimeout},
		{503, "rejected-ttl-expired", "", QueueTimeout},
		{503, "rejected-no-endpoints", "", NoEndpoint},
		{503, "rejected-shutting-down", "", ShuttingDown},
		{503, "rejected-context-cancelled", "", ShuttingDown},
		{500, "rejected-internal", "", NoEndpoint},
		{429, "evicted", "request evicted by flow control", Evicted},
		{429, "evicted-queue-pressure", "", Evicted},
		{500, "", "inference error: Internal - request cannot be admitted: probability", Shed},
		{429, "", "system saturated, sheddable request dropped", Shed},
		{429, "", "an engine's own limit", ""},
		{503, "", "no healthy upstream", ""},
		{400, "", "no model", ""},
	} {
		if got := droppedCause(test.status, test.reason, test.message); got != test.want {
			t.Errorf("%d %q %q is %q, want %q", test.status, test.reason, test.message, got, test.want)
		}
	}
}
