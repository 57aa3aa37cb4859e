package api

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/tenants"
)

// bounds tells everybody the same.
type bounds struct {
	list []gateway.Bound
	err  error
}

func (b bounds) Bounds(context.Context, *tenants.Principal) ([]gateway.Bound, error) {
	return b.list, b.err
}

func TestLimitsAreShownToTheirKey(t *testing.T) {
	t.Parallel()
	b := bounds{list: []gateway.Bound{
		{Scope: gateway.TenantScope, Name: "ten_a", Requests: gateway.Allowance{Limit: 60, Left: 59, Reset: time.Second}, Slots: 3, Live: 2},
		{Scope: gateway.ModelScope, Name: "sim-chat", Tokens: gateway.Allowance{Limit: 1000, Left: 0, Reset: 1500 * time.Millisecond}, Uncached: gateway.Allowance{Limit: 900, Left: 900}, Output: gateway.Allowance{Limit: 5, Left: 5}},
		{Scope: gateway.ModelScope, Name: "nobody-sells-this", Slots: 1},
		{Scope: gateway.KeyScope, Name: "key_a", Slots: 1},
	}}
	h := newHouse(t, nil, Config{})
	s := New(slog.New(slog.DiscardHandler), Deps{Keys: newKeyring(), Gateway: runner(respond), Limits: b, Catalogue: func() Catalogue { return newShop() }})
	w := ask(t, s.Handler(), "/v1/limits", "Bearer good")
	const want = `{"object":"list","data":[` +
		`{"object":"limit","scope":"tenant","id":"ten_a","requests_per_minute":{"limit":60,"remaining":59,"reset":1},"tokens_per_minute":null,"uncached_tokens_per_minute":null,"output_tokens_per_minute":null,"concurrency":{"limit":3,"used":2}},` +
		`{"object":"limit","scope":"model","id":"sim-chat","requests_per_minute":null,"tokens_per_minute":{"limit":1000,"remaining":0,"reset":1.5},"uncached_tokens_per_minute":{"limit":900,"remaining":900,"reset":0},"output_tokens_per_minute":{"limit":5,"remaining":5,"reset":0},"concurrency":null},` +
		`{"object":"limit","scope":"key","id":"key_a","requests_per_minute":null,"tokens_per_minute":null,"uncached_tokens_per_minute":null,"output_tokens_per_minute":null,"concurrency":{"limit":1,"used":0}}` +
		`],"service_tiers":{"default":"standard"},"burst":1}`
	if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Code != http.StatusOK {
		t.Errorf("%d (-want +got)\n%s", w.Code, diff)
	}
	validate(t, description(t).Components.Schemas["Limits"].Value, w.Body.Bytes())
	if r := h.send(t, http.MethodGet, "/v1/limits", nil); r.status != http.StatusOK {
		t.Errorf("without any: %d", r.status)
	}
}

func TestLimitsThatCannotBeAskedAreAnOutage(t *testing.T) {
	t.Parallel()
	b := bounds{err: &gateway.Error{Cause: gateway.LimitsUnknown}}
	s := New(slog.New(slog.DiscardHandler), Deps{Keys: newKeyring(), Gateway: runner(respond), Limits: b, Catalogue: func() Catalogue { return newShop() }})
	if w := ask(t, s.Handler(), "/v1/limits", "Bearer good"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
