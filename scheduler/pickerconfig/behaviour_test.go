package pickerconfig_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

// started is a scheduler with what the document says, and one endpoint.
func started(t *testing.T, document string) *scheduler.Embedded {
	t.Helper()
	d, err := pickerconfig.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	e := scheduler.New(d.Config, time.Now)
	t.Cleanup(e.Close)
	e.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test"}})
	e.SetHealth("a", scheduler.Healthy)
	return e
}

// granted is how many of so many requests that may not wait go out.
func granted(t *testing.T, e *scheduler.Embedded, n, band int) int {
	t.Helper()
	out := 0
	for i := range n {
		l, err := e.Schedule(t.Context(), scheduler.Request{
			ID: fmt.Sprintf("%d/%d.1", band, i), Flow: scheduler.Flow{FairnessID: "f", Band: band}, TTL: -1, InputTokens: 100,
		})
		var refusal *scheduler.Refusal
		switch {
		case err == nil:
			t.Cleanup(func() { l.End(scheduler.Outcome{}) })
			out++
		case !errors.As(err, &refusal):
			t.Fatal(err)
		}
	}
	return out
}

// What a document says of limits is what the scheduler does.
func TestLimitsHold(t *testing.T) {
	t.Parallel()
	const gated = "\nplugins: [{type: concurrency-detector, parameters: {%s}}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}\nweir: {slowStart: 0s}\n"
	for name, test := range map[string]struct {
		document string
		want     int
	}{
		"by requests":               {head + fmt.Sprintf(gated, "maxConcurrency: 12"), 12},
		"by tokens":                 {head + fmt.Sprintf(gated, "concurrencyMode: tokens, maxTokenConcurrency: 15000"), 150},
		"llm-d's default":           {head + fmt.Sprintf(gated, ""), 100},
		"without the gate, no wait": {"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n", 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := granted(t, started(t, test.document), 500, 0); got != test.want {
				t.Errorf("%d requests ran at once, want %d", got, test.want)
			}
		})
	}
}

// Ceilings are spread over band 0 too, which there always is in llm-d.
func TestBandZeroCountsWhereItIsNotListed(t *testing.T) {
	t.Parallel()
	const holdback = head + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 100}}, {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}]\n" +
		"flowControl: {saturationDetector: {pluginRef: concurrency-detector}, usageLimitPolicyPluginRef: priority-holdback-policy, priorityBands: [%s]}\nweir: {slowStart: 0s}\n"
	for name, test := range map[string]struct {
		listed string
		want   int
	}{
		"listed":     {"{priority: 10}, {priority: 5}, {priority: 0}", 75},
		"not listed": {"{priority: 10}, {priority: 5}", 75},
		"the lowest": {"{priority: 10}, {priority: 5}, {priority: -5}", 84}, // ceilings 1, 5/6, 2/3, 1/2
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := granted(t, started(t, fmt.Sprintf(holdback, test.listed)), 200, 5); got != test.want {
				t.Errorf("band 5 has %d of 100 places, want %d", got, test.want)
			}
		})
	}
}

// Without the gate a busy pool takes all but what has a negative priority.
func TestWithoutTheGateASaturatedPoolShedsNegativePriorities(t *testing.T) {
	t.Parallel()
	e := started(t, "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n")
	e.SetLoad("a", scheduler.Load{Waiting: 4, At: time.Now()})
	if got := granted(t, e, 20, -1); got != 20 {
		t.Errorf("not saturated: %d of 20 went out", got)
	}
	e.SetLoad("a", scheduler.Load{Waiting: 5, At: time.Now()})
	if got := granted(t, e, 20, -2); got != 0 {
		t.Errorf("saturated: %d of 20 with a negative priority went out", got)
	}
	if got := granted(t, e, 20, 0); got != 20 {
		t.Errorf("saturated: %d of 20 others went out", got)
	}
}
