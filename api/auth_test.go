package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/tenants"
)

func TestKeysDecideWhoMayCall(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	tests := []struct {
		name    string
		headers []string
		status  int
		code    string
	}{
		{"a bearer", []string{"Authorization", "Bearer good"}, 200, ""},
		{"a bearer in small letters", []string{"Authorization", "bearer good"}, 200, ""},
		{"the other header", []string{"Authorization", "", "X-Api-Key", "good"}, 200, ""},
		{"both, the same", []string{"Authorization", "Bearer good", "X-Api-Key", "good"}, 200, ""},
		{"both, different", []string{"Authorization", "Bearer good", "X-Api-Key", "other"}, 400, ""},
		{"no key", []string{"Authorization", ""}, 401, ""},
		{"an empty bearer", []string{"Authorization", "Bearer "}, 401, ""},
		{"another scheme", []string{"Authorization", "Basic Z29vZA=="}, 401, "invalid_api_key"},
		{"a bare key", []string{"Authorization", "good"}, 401, "invalid_api_key"},
		{"unknown", []string{"Authorization", "Bearer nobody"}, 401, "invalid_api_key"},
		{"malformed", []string{"Authorization", "Bearer malformed"}, 401, "invalid_api_key"},
		{"expired", []string{"Authorization", "Bearer expired"}, 401, "invalid_api_key"},
		{"revoked", []string{"Authorization", "Bearer revoked"}, 401, "invalid_api_key"},
		{"huge", []string{"Authorization", "Bearer " + strings.Repeat("x", 2000)}, 401, "invalid_api_key"},
		{"from elsewhere", []string{"Authorization", "Bearer elsewhere"}, 403, "insufficient_permissions"},
		{"of a suspended tenant", []string{"Authorization", "Bearer suspended"}, 403, "organization_suspended"},
		{"an administrator's", []string{"Authorization", "Bearer admin"}, 403, "insufficient_permissions"},
		{"of another scope", []string{"Authorization", "Bearer narrow"}, 403, "insufficient_permissions"},
		{"while the database is away", []string{"Authorization", "Bearer dark"}, 503, ""},
		{"while something else is broken", []string{"Authorization", "Bearer broken"}, 500, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := h.chat(t, helloBody, tt.headers...)
			if tt.status == http.StatusOK {
				if r.status != http.StatusOK {
					t.Errorf("got %d %s", r.status, r.body)
				}
				return
			}
			wantError(t, r, tt.status, tt.code)
			if strings.Contains(r.body, "internals") || strings.Contains(r.body, "refused") {
				t.Errorf("the answer shows what is behind it: %s", r.body)
			}
		})
	}
}

func TestAllBadKeysGetTheSameAnswer(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	answers := map[string]bool{}
	for _, key := range []string{"nobody", "malformed", "expired", "revoked", strings.Repeat("x", 600)} {
		answers[h.chat(t, helloBody, "Authorization", "Bearer "+key).body] = true
	}
	if len(answers) != 1 {
		t.Errorf("answers differ: %v", answers)
	}
	if none := h.chat(t, helloBody, "Authorization", ""); answers[none.body] {
		t.Error("no key at all has no answer of its own")
	}
}

func TestEachRouteNeedsItsScope(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	narrow := []string{"Authorization", "Bearer narrow"} // embeddings alone
	if r := h.send(t, http.MethodPost, "/v1/embeddings", strings.NewReader(`{"model":"m","input":"x"}`), narrow...); r.status != http.StatusOK {
		t.Errorf("its own scope: %d %s", r.status, r.body)
	}
	for _, rt := range h.server.routes() {
		if rt.scope == "" {
			t.Errorf("%s %s needs no scope", rt.method, rt.path)
		}
		if rt.scope != tenants.ScopeEmbeddings {
			wantError(t, h.send(t, rt.method, strings.ReplaceAll(rt.path, "*", "sim-chat"), nil, narrow...), http.StatusForbidden, "insufficient_permissions")
		}
	}
}

// unreadable is a body that tells when it is read.
type unreadable struct{ read bool }

func (u *unreadable) Read([]byte) (int, error) { u.read = true; return 0, io.EOF }
func (u *unreadable) Close() error             { return nil }

func TestNobodyReadsTheBodyOfAStranger(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	for _, key := range []string{"", "nobody", "narrow"} {
		body := &unreadable{}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", body)
		r.Header.Set("Authorization", "Bearer "+key)
		h.server.Handler().ServeHTTP(httptest.NewRecorder(), r)
		if body.read {
			t.Errorf("key %q: the body was read", key)
		}
	}
}

func TestBadKeysAreLimitedByNetwork(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBadKeys(func() time.Time { return now })
	stranger, neighbour := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff")
	other := netip.MustParseAddr("192.0.2.1")
	for i := range badKeyBurst {
		if wait := b.blocked(stranger); wait != 0 {
			t.Fatalf("blocked for %v after %d", wait, i)
		}
		b.record(stranger)
	}
	if b.blocked(stranger) != badKeyInterval || b.blocked(neighbour) == 0 {
		t.Error("the network is not blocked as a whole")
	}
	if b.blocked(other) != 0 {
		t.Error("another network is blocked")
	}
	now = now.Add(badKeyInterval)
	if b.blocked(stranger) != 0 {
		t.Error("blocked after the wait")
	}
	b.record(stranger)
	if b.blocked(stranger) == 0 {
		t.Error("more than one for each interval")
	}
}

func TestBadKeysRememberABoundedNumberOfNetworks(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBadKeys(func() time.Time { return now })
	for i := range 3 * maxNetworks {
		b.record(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		if len(b.networks) > maxNetworks {
			t.Fatalf("%d networks", len(b.networks))
		}
	}
}

func TestABlockedNetworkIsToldWhenToComeBackAndCostsNoLookUp(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for range badKeyBurst {
		h.chat(t, helloBody, "Authorization", "Bearer nobody", "X-Forwarded-For", "192.0.2.7")
	}
	asked := h.keys.asked
	r := h.chat(t, helloBody, "Authorization", "Bearer nobody", "X-Forwarded-For", "192.0.2.7")
	wantError(t, r, http.StatusTooManyRequests, "rate_limit_exceeded")
	if r.header.Get("Retry-After") == "" || h.keys.asked != asked {
		t.Errorf("headers %v, %d look-ups", r.header, h.keys.asked-asked)
	}
	if r := h.chat(t, helloBody, "X-Forwarded-For", "192.0.2.8"); r.status != http.StatusOK {
		t.Errorf("a neighbour: %d", r.status)
	}
}

func TestTheClientIsTheNearestHopThatWeDontTrust(t *testing.T) {
	t.Parallel()
	trusted := proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	tests := []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"direct", "192.0.2.1:5", nil, "192.0.2.1"},
		{"a stranger who forges", "192.0.2.1:5", []string{"1.1.1.1"}, "192.0.2.1"},
		{"behind a proxy", "10.1.1.1:5", []string{"192.0.2.1"}, "192.0.2.1"},
		{"what stands further left is not believed", "10.1.1.1:5", []string{"8.8.8.8, 192.0.2.1"}, "192.0.2.1"},
		{"two proxies", "10.1.1.1:5", []string{"8.8.8.8, 192.0.2.1, 10.2.2.2"}, "192.0.2.1"},
		{"two headers", "10.1.1.1:5", []string{"8.8.8.8", "192.0.2.1"}, "192.0.2.1"},
		{"rubbish on the right", "10.1.1.1:5", []string{"192.0.2.1, rubbish"}, "10.1.1.1"},
		{"nothing said", "10.1.1.1:5", nil, "10.1.1.1"},
		{"proxies all the way", "10.1.1.1:5", []string{"10.3.3.3, 10.2.2.2"}, "10.3.3.3"},
		{"with a port", "10.1.1.1:5", []string{"192.0.2.1:443"}, "192.0.2.1"},
		{"six", "[::1]:5", []string{"2001:db8::1"}, "2001:db8::1"},
		{"six in brackets", "[::1]:5", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"four in six", "[::ffff:192.0.2.1]:5", nil, "192.0.2.1"},
		{"four in six is the same proxy", "[::ffff:10.1.1.1]:5", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		{"a zone", "[fe80::1%eth0]:5", nil, "fe80::1"},
		{"no address", "pipe", nil, "invalid IP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{"X-Forwarded-For": tt.forwarded, "X-Real-Ip": {"9.9.9.9"}}}
			if got := trusted.client(r).String(); got != tt.want {
				t.Errorf("want %s, got %s", tt.want, got)
			}
		})
	}
}
