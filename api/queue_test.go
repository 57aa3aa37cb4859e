package api

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

// line is a queue that holds the same requests for everybody, and notes what
// it was asked.
type line struct {
	waiting []gateway.Waiting
	more    bool

	tenant tenants.ID
	id     string
	most   int
}

func (l *line) Waiting(p *tenants.Principal, id string, most int) ([]gateway.Waiting, bool) {
	l.tenant, l.id, l.most = p.Tenant, id, most
	return l.waiting, l.more
}

func TestTheQueueIsShownToItsProject(t *testing.T) {
	t.Parallel()
	since := time.Unix(1_700_000_000, 0)
	q := &line{more: true, waiting: []gateway.Waiting{
		{ID: "req_1", ClientRequestID: "job-7", Model: "sim-chat", Pool: "secret-pool", Band: "standard", Tier: tenants.TierDefault, Since: since, Waited: 1500 * time.Millisecond, Position: &scheduler.Position{Ahead: 2, Expected: 700 * time.Millisecond, Hold: scheduler.HeldByCeiling}},
		{ID: "req_2", Model: "sim-chat", Band: "batch", Tier: tenants.TierFlex, Since: since, Position: &scheduler.Position{}},
		{ID: "req_3", Model: "sim-chat", Band: "batch", Tier: tenants.TierFlex, Since: since},
	}}
	s := New(slog.New(slog.DiscardHandler), Deps{Keys: newKeyring(), Gateway: runner(respond), Queue: q, Catalogue: func() Catalogue { return newShop() }})
	w := ask(t, s.Handler(), "/v1/queue?request=job-7&limit=3", "Bearer good")
	const want = `{"object":"list","data":[` +
		`{"id":"req_1","object":"queued_request","client_request_id":"job-7","response_id":null,"model":"sim-chat","band":"standard","service_tier":"default","created_at":1700000000,"waited":1.5,"position":3,"expected_wait":0.7},` +
		`{"id":"req_2","object":"queued_request","client_request_id":null,"response_id":null,"model":"sim-chat","band":"batch","service_tier":"flex","created_at":1700000000,"waited":0,"position":1,"expected_wait":null},` +
		`{"id":"req_3","object":"queued_request","client_request_id":null,"response_id":null,"model":"sim-chat","band":"batch","service_tier":"flex","created_at":1700000000,"waited":0,"position":null,"expected_wait":null}` +
		`],"has_more":true}`
	if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Code != http.StatusOK {
		t.Errorf("%d (-want +got)\n%s", w.Code, diff)
	}
	if q.tenant != "ten_a" || q.id != "job-7" || q.most != 3 {
		t.Errorf("asked for %q of %s, %d at most", q.id, q.tenant, q.most)
	}
	validate(t, description(t).Components.Schemas["Queue"].Value, w.Body.Bytes())
}

func TestTheQueueIsRefused(t *testing.T) {
	t.Parallel()
	q := &line{}
	s := New(slog.New(slog.DiscardHandler), Deps{Keys: newKeyring(), Gateway: runner(respond), Queue: q, Catalogue: func() Catalogue { return newShop() }})
	for _, tt := range []struct {
		name, path, key string
		status          int
	}{
		{"no key", "/v1/queue", "", 401},
		{"a key without the scope", "/v1/queue", "Bearer narrow", 403},
		{"an administrator's key", "/v1/queue", "Bearer admin", 403},
		{"no number", "/v1/queue?limit=many", "Bearer good", 400},
		{"none", "/v1/queue?limit=0", "Bearer good", 400},
		{"too many", "/v1/queue?limit=101", "Bearer good", 400},
	} {
		if w := ask(t, s.Handler(), tt.path, tt.key); w.Code != tt.status || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%s: %d %s", tt.name, w.Code, w.Body)
		}
	}
	if q.most != 0 {
		t.Error("the queue was asked")
	}
}
