package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// paywall answers as the gateway does where there is no credit left, whatever it
// is asked.
type paywall struct {
	url   string
	asked atomic.Int64
}

func newPaywall(t *testing.T) *paywall {
	t.Helper()
	p := &paywall{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Should-Retry", "false")
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = io.WriteString(w, `{"error":{"message":"Your organization has no credit left.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`)
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// askedOnce demands that the client took no for an answer: trying again costs
// both sides and changes nothing.
func (p *paywall) askedOnce(t *testing.T) {
	t.Helper()
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the client asked %d times", n)
	}
}
