package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/tenants"
)

// talk sends a long prompt of the tenant twice and returns the second answer.
func (o *town) talk(t *testing.T, tenant string) string {
	t.Helper()
	var to *caller
	for i := range 2 {
		plan, messages := o.plan, fmt.Sprintf(`[{"role":"user","content":%q}]`, strings.Repeat("the river is long and ", 60))
		to = &caller{}
		err := o.Run(t.Context(), gateway.Call{
			ID: fmt.Sprint("req_", i), Operation: gateway.Chat, Model: "pub", Choices: 1, ReceivedAt: time.Now(),
			Fields:    []byte(`"messages":` + messages + `,"max_tokens":2`),
			Principal: &tenants.Principal{Tenant: tenants.ID(tenant), Key: "key_a", Plan: &plan, FairnessID: "f_a"},
		}, to)
		if err != nil {
			t.Fatal(err)
		}
	}
	return to.text()
}

// Cached tokens are shown, and sold as such, where tenants are kept apart, and
// nowhere else.
func TestCachedTokensAreShownOnlyWhereTenantsAreApart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, pool    string
		probed, shown bool
		fault         string // told to operators
	}{
		{"a pool that claims nothing", "plain", true, false, ""},
		{"a pool of one tenant", "own isolation: single-tenant, tenants: [ten_a],", true, true, ""},
		{"a pool that is verified", "good isolation: verified,", true, true, ""},
		{"a claim that was not probed yet", "good isolation: verified,", false, false, "not probed yet"},
		{"a claim that is not true", "leaky isolation: verified,", true, false, "ignores cache_salt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			name, _, _ := strings.Cut(tt.pool, " ")
			o := newTown(t, "{pool: "+name+"}", tt.pool)
			if tt.probed {
				o.prove(t)
			}
			answer := o.talk(t, "ten_a")
			if got := gjson.Get(answer, "usage.prompt_tokens_details.cached_tokens").Int() > 0; got != tt.shown || !gjson.Valid(answer) {
				t.Errorf("cached tokens are shown: %v, want %v: %s", got, tt.shown, answer)
			}
			all := o.ledger.all()
			r := all[len(all)-1]
			if got := r.Usage.InputCached > 0; got != tt.shown || r.Usage.InputCached+r.Usage.InputUncached != gjson.Get(answer, "usage.prompt_tokens").Int() {
				t.Errorf("receipt of %+v", r.Usage)
			}
			err := o.CheckIsolation(t.Context())
			if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("operators are told %v, want %q", err, tt.fault)
			}
			if claims := len(o.Isolation()); claims != strings.Count(tt.pool, "verified") {
				t.Errorf("%d pools in the overview", claims)
			}
		})
	}
}

// An engine that keeps tenants apart in chats may not do so in responses of its
// own: each way has to be proven.
func TestEachWayToAskAnEngineIsProvenByItself(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pool            string
		chat, responses bool // show what was cached
		fault           string
	}{
		"both keep tenants apart":     {"good", true, true, ""},
		"chats alone do":              {"natively-leaky", true, false, "endpoint e: /v1/responses: a prompt of one salt came from the cache for another"},
		"neither keeps tenants apart": {"leaky", false, false, "endpoint e: a prompt of one salt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTown(t, "{pool: "+tt.pool+"}", tt.pool+" isolation: verified,")
			m, _ := o.snap.Lookup("pub")
			m.Upstream = catalogue.ResponsesUpstream
			o.prove(t)
			if got := strings.Contains(o.talk(t, "ten_a"), `"cached_tokens":`); got != tt.chat {
				t.Errorf("a chat shows what was cached: %v", got)
			}
			var to *caller
			for i := range 2 {
				plan := o.plan
				to = &caller{}
				if err := o.Run(t.Context(), gateway.Call{
					ID: fmt.Sprint("req_", i), Operation: gateway.Responses, Stream: true, Model: "pub", Choices: 1, ReceivedAt: time.Now(),
					Fields:    fmt.Appendf(nil, `"store":false,"max_output_tokens":2,"input":%q`, strings.Repeat("another river is wide and ", 60)),
					Principal: &tenants.Principal{Tenant: "ten_a", Key: "key_a", Plan: &plan, FairnessID: "f_a"},
				}, to); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Contains(to.text(), `"cached_tokens":`); got != tt.responses || !strings.Contains(to.text(), `"output_tokens":2`) {
				t.Errorf("a response shows what was cached: %v, in %s", got, to.text())
			}
			if err := o.CheckIsolation(t.Context()); (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("operators are told %v, want %q", err, tt.fault)
			}
		})
	}
}

// A plan that wants isolation gets no pool that only claims it.
func TestAnUnprovenPoolIsNoneForAPlanThatWantsIsolation(t *testing.T) {
	t.Parallel()
	o := newTown(t, "{pool: leaky}", "leaky isolation: verified,")
	o.plan.Isolation = tenants.IsolationVerified
	o.prove(t)
	if _, err := o.ask(t.Context(), "s"); causeOf(err) != gateway.NoEndpoint {
		t.Errorf("got %v", err)
	}
	if len(o.served) != 0 {
		t.Error("the engine had a request")
	}
}
