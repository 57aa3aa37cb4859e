package epp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheBodySaysWhatTheSchedulerWantsToKnow(t *testing.T) {
	t.Parallel()
	parts := func(all ...string) (p [][]byte) {
		for _, s := range all {
			p = append(p, []byte(s))
		}
		return p
	}
	for _, c := range []struct {
		name, body string
		want       prompt
		ok         bool
	}{
		{
			"a chat: tools come before messages", `{"model":"m","messages":[{"role":"user"}],"tools":[1],"stream":true,"max_completion_tokens":10,"n":3,"cache_salt":"s"}`,
			prompt{parts: parts(`[1]`, `[{"role":"user"}]`), model: "m", salt: "s", stream: true, output: 30}, true,
		},
		{
			"a response: instructions come before its input", ` {"input":"hi","instructions":"be kind","prompt_cache_key":"k","max_output_tokens":5}`,
			prompt{parts: parts(`"be kind"`, `"hi"`), cacheKey: "k", output: 5}, true,
		},
		{"a completion", `{"prompt":"once","max_tokens":99999999999999}`, prompt{parts: parts(`"once"`), output: maxOutput}, true},
		{"negative limits say nothing", `{"prompt":"a","max_tokens":-1,"n":-5}`, prompt{parts: parts(`"a"`)}, true},
		{"wrong types say nothing", `{"model":5,"stream":"yes","messages":null}`, prompt{parts: parts(`null`), model: "5"}, true},
		{"an array is none", `[1]`, prompt{}, false},
		{"nothing is none", ``, prompt{}, false},
		{"half an object is none", `{"model":"m"`, prompt{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := parsePrompt([]byte(c.body), false)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(prompt{})); diff != "" || ok != c.ok {
				t.Errorf("ok: %v; (-want +got)\n%s", ok, diff)
			}
		})
	}
}

func FuzzABodyNeverBreaksTheParser(f *testing.F) {
	f.Add([]byte(`{"messages":[{}],"n":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, trusted := range []bool{false, true} {
			p, _ := parsePrompt(body, trusted)
			if p.output < 0 || p.inputTokens() > len(body) {
				t.Errorf("%+v of %q", p, body)
			}
		}
	})
}
