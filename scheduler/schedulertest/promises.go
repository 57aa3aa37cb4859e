package schedulertest

import (
	"slices"
	"strings"
	"time"

	"weir/scheduler"
)

// What some schedulers promise beyond.

func caps(t *trial) {
	calls := t.sendAll(10, "f", 0)
	on := map[string]int{}
	for _, c := range calls {
		if c.live() {
			on[c.Targets()[0].Endpoint]++
		}
	}
	if on["a"] != 1 || on["b"] != 3 {
		t.Errorf("leases by endpoint are %v, want a:1 b:3", on)
	}
	t.drain(calls)
}

func leastLoaded(t *trial) {
	on := map[string][]*call{}
	for _, c := range t.sendAll(6, "f", 0) {
		id := t.granted(c).Targets()[0].Endpoint
		on[id] = append(on[id], c)
	}
	for id, calls := range on {
		if len(calls) != 2 {
			t.Errorf("%d of 6 leases on %s, want 2", len(calls), id)
		}
	}
	on["b"][0].complete()
	t.h.Settle()
	if id := t.granted(t.send(request("next", "f", 0, 0))).Targets()[0].Endpoint; id != "b" {
		t.Errorf("the next went to %s, want b, which has the least", id)
	}
	t.abandon()
}

func excludes(t *trial) {
	for i, want := range []string{"b", "b", "a"} {
		r := request("r", "f", 0, i)
		r.Exclude = []string{"a"}
		if got := t.granted(t.send(r)).Targets()[0].Endpoint; got != want {
			t.Errorf("request %d went to %s, want %s", i, got, want)
		}
	}
	t.abandon()
}

func turns(t *trial) {
	running := t.occupy()
	flood := t.sendAll(20, "flood", 0)
	few := t.sendAll(3, "few", 0)
	running[0].complete()
	got := t.order(slices.Concat(flood, few))
	if last := lastOf(got, "few"); last > 6 {
		t.Errorf("the last of 3 requests beside a flood went as number %d: %v", last, got)
	}
}

func lastOf(ids []string, name string) int {
	last := -1
	for i, id := range ids {
		if strings.HasPrefix(id, name) {
			last = i
		}
	}
	return last
}

// weights keeps three flows backlogged on one endpoint and counts the tokens
// that each is served, with prompts of different length.
func weights(t *trial) {
	running := t.occupy()
	weight, input := map[string]int{"one": 1, "two": 2, "five": 5}, map[string]int{"one": 400, "two": 100, "five": 1000}
	var calls []*call
	for _, name := range []string{"one", "two", "five"} {
		for i := range 400 {
			r := request(name, name, 0, i)
			r.Weight, r.InputTokens, r.OutputTokens = weight[name], input[name], 1
			calls = append(calls, t.send(r))
		}
	}
	t.h.Settle()
	running[0].complete()
	served, total := map[string]float64{}, 0.0
	t.first(300, calls, func(c *call) scheduler.Outcome {
		n := input[c.flow.FairnessID]
		served[c.flow.FairnessID] += float64(n)
		total += float64(n)
		return scheduler.Outcome{InputTokens: n, OutputTokens: 1}
	})
	for name, w := range weight {
		want := float64(w) / 8
		if got := served[name] / total; got < want-0.03 || got > want+0.03 {
			t.Errorf("flow %s was served %.3f of the tokens, want %.3f within 0.03", name, got, want)
		}
	}
	t.abandon()
}

func sessions(t *trial) {
	running := t.occupy()
	var calls []*call
	for i, turn := range []int{1, 9, 5, 20} {
		r := request("turn", "f", 0, turn)
		r.Session, r.Turn = "s"+string(rune('0'+i)), turn
		calls = append(calls, t.send(r))
		t.h.Settle()
	}
	running[0].complete()
	if got, want := t.order(calls), []string{"turn/020", "turn/009", "turn/005", "turn/001"}; !slices.Equal(got, want) {
		t.Errorf("order is %v, want %v", got, want)
	}
}

func sessionsShare(t *trial) {
	running := t.occupy()
	var calls []*call
	for i := range 60 {
		deep := request("deep", "deep", 0, i)
		deep.Session, deep.Turn = "s"+string(rune('0'+i%10)), 100+i
		calls = append(calls, t.send(deep), t.send(request("plain", "plain", 0, i)))
	}
	t.h.Settle()
	running[0].complete()
	deep := 0
	for _, id := range t.first(60, calls, func(*call) scheduler.Outcome { return completed() }) {
		if strings.HasPrefix(id, "deep") {
			deep++
		}
	}
	if deep < 28 || deep > 32 {
		t.Errorf("a flow of deep sessions got %d of 60 places beside another, want 30", deep)
	}
	t.abandon()
}

func retries(t *trial) {
	began := time.Now()
	running := t.granted(t.send(request("r", "f", 0, 1)))
	<-time.After(10 * time.Millisecond)
	waiting := t.sendAll(3, "f", 0)
	again := request("retry", "f", 0, 1)
	again.QueuedAt = began
	retry := t.send(again)
	t.h.Settle()
	running.finish(scheduler.Outcome{Result: scheduler.EndpointFault})
	if got := t.order(append(waiting, retry)); got[0] != "retry/001" {
		t.Errorf("order is %v, want the retry first", got)
	}
}

func shares(t *trial) {
	running := t.occupy()
	calls := slices.Concat(t.sendAll(100, "high", 10), t.sendAll(60, "low", 0))
	running[0].complete()
	low := 0
	for _, id := range t.first(100, calls, func(*call) scheduler.Outcome { return completed() }) {
		if strings.HasPrefix(id, "low") {
			low++
		}
	}
	if low < 18 || low > 22 {
		t.Errorf("a band with a share of a fifth got %d of 100 places beside a higher one", low)
	}
	t.abandon()
}

// reservations has four places for requests of at most 200 tokens.
func reservations(t *trial) {
	running := t.occupy()
	high := t.sendAll(6, "high", 100)
	var low []*call
	for i := range 4 {
		r := request("low", "low", -10, i)
		r.Reserved = 150
		low = append(low, t.send(r))
		t.h.Settle()
	}
	for _, c := range running {
		c.complete()
		t.h.Settle()
	}
	held := 0
	for _, c := range low {
		if c.live() {
			held++
		}
	}
	if held == 0 || held > 2 {
		t.Errorf("a reservation of 150 tokens holds %d of 4 places beside a higher band, want one or two", held)
	}
	t.drain(slices.Concat(high, low))
}

func eviction(t *trial) {
	low := t.granted(t.send(request("low", "f", -10, 0)))
	high := t.send(request("high", "f", 10, 0))
	<-low.Evicted()
	if t.h.Can.HoldsEvicted {
		t.expect(1, 1) // a lease ends by End alone
	}
	low.finish(scheduler.Outcome{Result: scheduler.Abandoned})
	t.granted(high)
	t.h.Settle()
	other := t.sendAll(1, "other", 100)[0]
	select {
	case <-high.Evicted():
		t.Error("an endpoint was taken back from a band above zero")
	default:
	}
	high.complete()
	t.granted(other).complete()
}
