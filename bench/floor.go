package main

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

// floor is the least that a gateway must do: read the body whole, send it on,
// copy the answer and flush after each read. What a gateway costs beyond it is
// what its features cost.
type floor struct {
	upstream  string
	transport *http.Transport
}

func newFloor(upstream string) *floor {
	return &floor{upstream: upstream, transport: newTransport()}
}

// newTransport keeps connections and changes nothing.
func newTransport() *http.Transport {
	return &http.Transport{
		MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
	}
}

// ServeHTTP forwards one request.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, f.upstream+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header.Set("Content-Type", r.Header.Get("Content-Type"))
	resp, err := f.transport.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for _, name := range []string{"Content-Type", "Content-Length"} {
		if v := resp.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	copyFlushing(w, resp.Body)
}

// copyFlushing ends when either side does; the server tells the caller.
func copyFlushing(w http.ResponseWriter, from io.Reader) {
	rc := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil || rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
