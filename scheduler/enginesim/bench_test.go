package enginesim_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/scheduler/enginesim"
)

// BenchmarkPacedStreams tells what a streamed token costs: 200 streams of 100
// tokens, an event and a flush for each, the client's reading included.
func BenchmarkPacedStreams(b *testing.B) {
	e := enginesim.New(enginesim.Config{MaxNumSeqs: 200, ITL: 20 * time.Millisecond, Models: []string{"sim-chat"}})
	srv := httptest.NewServer(e)
	b.Cleanup(func() { e.Close(); srv.Close() })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	body := helloStream + `,"max_tokens":100,"ignore_eos":true}`
	read := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	b.ReportAllocs()
	for b.Loop() {
		errs := make(chan error)
		for range 200 {
			go func() { errs <- read(b.Context()) }()
		}
		for range 200 {
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(e.Stats().GeneratedTokens)/b.Elapsed().Seconds(), "chunks/s")
}
