package llmd_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppreal"
)

// What a real picker makes of what it is told: a prompt of megabytes comes
// through unharmed, and the events of an answer bring its usage.
func TestARealPickerReadsBodiesAndCountsUsage(t *testing.T) {
	t.Parallel()
	picker := startReal(t, eppreal.Config{Places: 4})
	if err := picker.SetEndpoints(t.Context(), map[string]string{"engine-a": realAddress("a")}); err != nil {
		t.Fatal(err)
	}
	c := realClient(t, picker, llmd.Config{})
	r := realRequest(1)
	r.Body = body(5 << 20)
	l, err := c.Schedule(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.Body(), r.Body) {
		t.Errorf("a body of %d bytes came back as one of %d", len(r.Body), len(l.Body()))
	}
	l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
	for i := range 20 {
		l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: fmt.Appendf(nil, `{"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"%d"}}]}`, i)})
	}
	l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(
		`{"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":123,"completion_tokens":45,"total_tokens":168}}`,
	)})
	l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 123, OutputTokens: 45})
	for name, want := range map[string]float64{"llm_d_epp_request_input_tokens_sum": 123, "llm_d_epp_request_output_tokens_sum": 45} {
		var got float64
		for began := time.Now(); got != want && time.Since(began) < 10*time.Second; pause(50 * time.Millisecond) {
			got = metric(t, picker.MetricsURL(), name)
		}
		if got != want {
			t.Errorf("the picker counts %v as %s, want %v", got, name, want)
		}
	}
}

// metric is the sum of a metric's series; 0 where there is none yet.
func metric(t *testing.T, url, name string) (sum float64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if fields := strings.Fields(line); strings.HasPrefix(line, name+"{") && len(fields) > 1 {
			n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatalf("metric %q: %v", line, err)
			}
			sum += n
		}
	}
	return sum
}
