package main

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// paywall stands before a replica that sells for credit alone, to a tenant that
// has none, and counts how often it is asked.
type paywall struct {
	url   string
	asked atomic.Int64
}

func newPaywall(t *testing.T, r *rig) *paywall {
	t.Helper()
	p := &paywall{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		p.asked.Add(1)
		body, err := io.ReadAll(in.Body)
		if err != nil {
			return // the client has left
		}
		out, err := http.NewRequestWithContext(in.Context(), in.Method, r.paid+in.URL.Path, bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		out.Header = in.Header
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return
		}
		defer res.Body.Close()
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
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
