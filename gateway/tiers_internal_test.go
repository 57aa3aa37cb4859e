package gateway

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
)

const tiersDocument = `{"id":"c","model":"org/engine","choices":[{"message":{"content":"x"}}],` +
	`"usage":{"prompt_tokens":90,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":80}},"sglext":{"cached_tokens_details":%}}`

func TestTiersAreBelievedOnlyWhereTheyAddUp(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, told string
		want       *billing.CacheTiers
	}{
		{"all three", `{"device":48,"host":16,"storage":16,"storage_backend":"file"}`, &billing.CacheTiers{Host: 16, Storage: 16}},
		{"no storage", `{"device":64,"host":16}`, &billing.CacheTiers{Host: 16}},
		{"all of it in the accelerator's own memory", `{"device":80,"host":0}`, &billing.CacheTiers{}},
		{"null", `null`, nil},
		{"another shape", `[80]`, nil},
		{"no device", `{"host":80}`, nil},
		{"no host", `{"device":80}`, nil},
		{"less than was cached", `{"device":48,"host":16}`, nil},
		{"more than was cached", `{"device":48,"host":33}`, nil},
		{"a negative count", `{"device":96,"host":-16}`, nil},
		{"a sum that overflows", `{"device":9223372036854775807,"host":9223372036854775807,"storage":82}`, nil},
		{"a text", `{"device":"64","host":16}`, nil},
		{"a storage that is no count", `{"device":64,"host":16,"storage":true}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &meter{}
			out, err := newRewriter(m, "pub", "org/engine", "", false, waited).document(nil, []byte(strings.Replace(tiersDocument, "%", tt.told, 1)))
			if err != nil || strings.Contains(string(out), "sglext") {
				t.Fatal(err, string(out))
			}
			u, source := m.usage(true)
			if diff := cmp.Diff(tt.want, m.cachedTiers(u, source)); diff != "" || u.InputCached != 80 || source != billing.UpstreamFinal {
				t.Errorf("%+v (%s), tiers (-want +got):\n%s", u, source, diff)
			}
			m.reset()
			m.saw([]byte(`{"prompt_tokens":90,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":80}}`))
			if got := m.cachedTiers(m.usage(true)); got != nil {
				t.Errorf("another attempt has the tiers %+v of the one before", got)
			}
		})
	}
}

func TestAChunkThatTellsOnlyTiersIsForUsAlone(t *testing.T) {
	t.Parallel()
	m := &meter{}
	r := newRewriter(m, "pub", "org/engine", "", true, waited)
	var out []byte
	for _, p := range []string{
		`{"id":"c","model":"org/engine","choices":[{"index":0,"delta":{"content":"\"sglext\":{}"}}]}`,
		`{"id":"c","model":"org/engine","choices":[],"sglext":{"cached_tokens_details":{"device":1,"host":2}}}`,
		`{"id":"c","model":"org/engine","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`,
	} {
		var err *Error
		if out, err = r.chunk(out, []byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(string(out), "data: "); n != 2 || strings.Contains(string(out), "cached_tokens_details") {
		t.Errorf("the caller sees %d events, want 2:\n%s", n, out)
	}
	if got := m.cachedTiers(m.usage(true)); got == nil || *got != (billing.CacheTiers{Host: 2}) {
		t.Errorf("got %+v", got)
	}
}
