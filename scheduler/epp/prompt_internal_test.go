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
			name: "a chat: tools come before messages",
			body: `{"model":"m","messages":[{"role":"user"}],"tools":[1],"stream":true,"max_completion_tokens":10,"n":3,"cache_salt":"s"}`,
			want: prompt{parts: parts(`[1]`, `[{"role":"user"}]`), model: "m", salt: "s", stream: true, output: 30},
			ok:   true,
		},
		{
			name: "a response: instructions come before its input",
			body: ` {"input":"hi","instructions":"be kind","prompt_cache_key":"k","max_output_tokens":5}`,
			want: prompt{parts: parts(`"be kind"`, `"hi"`), cacheKey: "k", output: 5},
			ok:   true,
		},
		{name: "a completion", body: `{"prompt":"once","max_tokens":99999999999999}`, want: prompt{parts: parts(`"once"`), output: maxOutput}, ok: true},
		{name: "negative limits say nothing", body: `{"prompt":"a","max_tokens":-1,"n":-5}`, want: prompt{parts: parts(`"a"`)}, ok: true},
		{name: "wrong types say nothing", body: `{"model":5,"stream":"yes","messages":null}`, want: prompt{parts: parts(`null`), model: "5"}, ok: true},
		{name: "an array is none", body: `[1]`, want: prompt{}, ok: false},
		{name: "nothing is none", body: ``, want: prompt{}, ok: false},
		{name: "half an object is none", body: `{"model":"m"`, want: prompt{}, ok: false},
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
