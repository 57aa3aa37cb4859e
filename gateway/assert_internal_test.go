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

// Whatever comes back, an engine reads our own values where they are ours.
func FuzzNobodyElseDecidesWhatIsOurs(f *testing.F) {
	const ours = `{"model":"org/engine","cache_salt":"s","stream":true,"messages":[],"max_tokens":9}`
	for _, seed := range []string{
		ours, `{"model":"x","model":"y"}`, `{"cache\u005fsalt":"x","n":2}`, ` { "stream" : false } `, `{"":1,"a":{"model":2}}`, `{"model":"x"`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, theirs []byte) {
		var got, own map[string]json.RawMessage
		sent := assert([]byte(ours), theirs)
		if err := json.Unmarshal(sent, &got); err != nil {
			t.Fatalf("%v in %s", err, sent)
		}
		if err := json.Unmarshal([]byte(ours), &own); err != nil {
			t.Fatal(err)
		}
		for name, value := range got {
			if asserted(name) && string(value) != string(own[name]) {
				t.Errorf("%s is %s in %s", name, value, sent)
			}
		}
		for name := range own {
			if asserted(name) && got[name] == nil {
				t.Errorf("%s is gone from %s", name, sent)
			}
		}
	})
}
