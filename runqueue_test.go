package main

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// nightCatalogue has a band for what is made in the background, below the
// others, and a pool that is scheduled as its document says.
const nightCatalogue = `apiVersion: weir/v1
bands: [{name: interactive, priority: 100}, {name: standard, priority: 0}, {name: night, priority: -10}]
plans: {basic: {bands: {default: interactive, background: night}, weight: 1}}
pools:
  - name: main
    scheduler: SCHEDULER
    endpoints: [{id: a, url: "ENGINE", engine: sim}]
models: [{name: sim-chat, operations: [chat], routes: [{pool: main}]}]
`

func startNight(t *testing.T, scheduler string) *whole {
	t.Helper()
	w := &whole{sound: startEngine(t, "--itl", "3s")} // nothing ends by itself while a test lasts
	w.installation = installWith(t, strings.NewReplacer("ENGINE", w.sound, "SCHEDULER", scheduler).Replace(nightCatalogue))
	w.url, _ = w.serve(t)
	return w
}

// flood orders runs until there are so many, and waits until the engine makes
// some and the others wait. It returns those in progress and those that wait, in
// the order in which they will go.
func (w *whole) flood(t *testing.T, runs, places int) (made, waiting []string) {
	t.Helper()
	ids := make([]string, runs)
	for i := range ids {
		status, r := respond(t, w.url, w.key, task(fmt.Sprintf("night-%d", i), background))
		if ids[i] = r.Get("id").Str; status != http.StatusOK {
			t.Fatalf("%d %s", status, r.Raw)
		}
	}
	eventually(t, 30*time.Second, func() string {
		made, waiting = nil, make([]string, runs-places+1)
		for _, id := range ids {
			if at := w.position(t, id); at != nil && *at < len(waiting) {
				waiting[*at] = id
			} else if _, r := call(t, http.MethodGet, w.url+"/v1/responses/"+id, w.key); r.Get("status").Str == "in_progress" {
				made = append(made, id)
			}
		}
		waiting = waiting[1:] // positions count from 1
		for i, id := range waiting {
			if id == "" {
				return fmt.Sprintf("none waits at position %d", i+1)
			}
		}
		if len(made) != places {
			return fmt.Sprintf("%d are made, want %d", len(made), places)
		}
		return ""
	})
	return made, waiting
}

// position is where the queue shows what has the name; nil where it doesn't.
func (w *whole) position(t *testing.T, name string) *int {
	t.Helper()
	var list queued
	if status := getJSON(t, w.url+"/v1/queue?request="+name, w.key, &list); status != http.StatusOK || len(list.Data) > 1 {
		t.Fatalf("%d %+v", status, list)
	}
	if len(list.Data) == 0 {
		return nil
	}
	return list.Data[0].Position
}

// A run waits behind all that somebody waits for, and the queue says where.
func TestNoRunInTheBackgroundGoesBeforeWhoWaits(t *testing.T) {
	t.Parallel()
	w := startNight(t, "{max_concurrency: 2}")
	made, waiting := w.flood(t, 10, 2)
	var list queued
	getJSON(t, w.url+"/v1/queue?request="+waiting[0], w.key, &list)
	if one := list.Data[0]; one.Band != "night" || one.ClientID != waiting[0] || one.Model != "sim-chat" {
		t.Errorf("shown as %+v", one)
	}

	answers := make(chan answer, 1)
	go func() {
		answers <- w.chat(t, "sim-chat", `"max_tokens":1`, "X-Client-Request-Id", "somebody")
	}()
	eventually(t, 30*time.Second, func() string {
		if at := w.position(t, "somebody"); at == nil || *at != 1 {
			return fmt.Sprintf("who came last, but waits, is at %v", at)
		}
		return ""
	})
	if at := w.position(t, waiting[0]); at == nil || *at != 2 {
		t.Errorf("the first run is at %v now, want 2", at)
	}
	call(t, http.MethodPost, w.url+"/v1/responses/"+made[0]+"/cancel", w.key)
	if a := <-answers; a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.text)
	}
	var log struct{ Requests []arrived }
	getJSON(t, w.sound+"/admin/requests?last=64", "", &log)
	for i, r := range log.Requests[:3] {
		if night := strings.Contains(r.Body, "night-"); night != (i < 2) {
			t.Errorf("as number %d the engine was asked %s", i+1, r.Body)
		}
	}
	eventually(t, 30*time.Second, func() string {
		if at := w.position(t, waiting[0]); at != nil {
			return fmt.Sprintf("the place is free again, and the first run waits at %d", *at)
		}
		return ""
	})
}

// Where a pool holds places back, a flood of runs leaves them free: who waits
// for an answer begins at once, as if there were no runs.
func TestAFloodInTheBackgroundDelaysNobody(t *testing.T) {
	t.Parallel()
	w := startNight(t, `
      apiVersion: llm-d.ai/v1
      kind: EndpointPickerConfig
      featureGates: [flowControl]
      plugins:
        - {type: concurrency-detector, parameters: {maxConcurrency: 4}}
        - {type: priority-holdback-policy, name: holdback, parameters: {minCeiling: 0.5}}
      flowControl:
        saturationDetector: {pluginRef: concurrency-detector}
        usageLimitPolicyPluginRef: holdback
        priorityBands: [{priority: 100}, {priority: 0}, {priority: -10}]`)
	made, waiting := w.flood(t, 12, 2)
	const callers, turns = 2, 4
	answers := make(chan answer, callers*turns)
	for range callers {
		go func() {
			for range turns {
				answers <- w.chat(t, "sim-chat", `"max_tokens":1`)
			}
		}()
	}
	for range cap(answers) {
		if a := <-answers; a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.text)
		}
	}
	// None of them waited until a run had ended: none has.
	for _, r := range w.asked(t, "night-") {
		if r.Outcome != "" {
			t.Errorf("a run was %s", r.Outcome)
		}
	}
	if n := len(w.asked(t, "night-")); n != len(made) {
		t.Errorf("%d runs were begun, want %d", n, len(made))
	}
	if at := w.position(t, waiting[0]); at == nil || *at != 1 {
		t.Errorf("the first of those that wait is at %v", at)
	}
}

// A run that gave its place to a higher band is made again when there is room.
func TestARunThatWasEvictedIsMadeLater(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t, "--itl", "50ms")}
	w.installation = installWith(t, strings.NewReplacer("ENGINE", w.sound, "default: standard, priority: interactive, flex: night", "default: standard, background: night").Replace(evictingCatalogue))
	w.url, _ = w.serve(t)
	_, r := respond(t, w.url, w.key, `{"model":"org/chat-1","input":"gives way","background":true}`)
	id := r.Get("id").Str
	becomes(t, w.url, w.key, id, "in_progress", 30*time.Second)
	if a := w.chat(t, "org/chat-1", `"max_tokens":1`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.text)
	}
	becomes(t, w.url, w.key, id, "completed", 60*time.Second)
	if got := w.asked(t, "gives way"); len(got) != 2 || got[0].Outcome != "aborted" || got[1].Outcome != "completed" {
		t.Errorf("the engine was asked %+v", got)
	}
}

// A run whose output somebody sees is made again, too. What was shown is taken
// back: who followed is told so, who comes back to it is refused, and whoever
// begins from the start gets one whole stream, under numbers that were never used.
func TestAStreamThatWasEvictedIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, environment := range map[string][]string{"alone": nil, "with a shared Redis": {sharedRedis(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &whole{sound: startEngine(t, "--itl", "100ms")}
			w.installation = installWith(t, strings.NewReplacer("ENGINE", w.sound, "default: standard, priority: interactive, flex: night", "default: standard, background: night").Replace(evictingCatalogue))
			w.url, _ = w.serve(t, environment...)
			s := open(t, http.MethodPost, w.url+"/v1/responses", w.key, `{"model":"org/chat-1","input":"gives way","background":true,"stream":true}`)
			id, last := "", int64(-1)
			for last < 12 {
				e := s.next(t)
				id, last = cmp.Or(e.Get("response.id").Str, id), e.Get("sequence_number").Int()
			}
			at := w.url + "/v1/responses/" + id + "?stream=true"
			if a := w.chat(t, "org/chat-1", `"max_tokens":1`); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.text)
			}
			seen := s.rest(t, last)
			end := seen[len(seen)-1]
			if end.Get("type").Str != "error" || !strings.Contains(end.Get("message").Str, "begun anew") {
				t.Errorf("who followed is told %s", end.Raw)
			}
			shown := last + int64(len(seen)) - 1
			if back := open(t, http.MethodGet, fmt.Sprintf("%s&starting_after=%d", at, last), w.key, ""); back.status != http.StatusBadRequest {
				t.Errorf("who comes back to what was taken back is answered %d", back.status)
			}
			whole := open(t, http.MethodGet, at, w.key, "")
			first := whole.next(t)
			if first.Get("type").Str != "response.created" || first.Get("sequence_number").Int() <= shown {
				t.Errorf("after event %d it is begun anew with %s", shown, first.Raw)
			}
			events := whole.rest(t, first.Get("sequence_number").Int())
			oneEnd(t, events, "completed")
			var text strings.Builder
			for _, e := range events {
				if e.Get("type").Str == "response.created" {
					t.Errorf("created twice: %s", e.Raw)
				}
				if e.Get("type").Str == "response.output_text.delta" {
					text.WriteString(e.Get("delta").Str)
				}
			}
			if got := events[len(events)-1].Get("response.output.0.content.0.text").Str; got == "" || got != text.String() {
				t.Errorf("streamed %q, ended with %q", text.String(), got)
			}
			if got := w.asked(t, "gives way"); len(got) != 2 || got[0].Outcome != "aborted" || got[1].Outcome != "completed" {
				t.Errorf("the engine was asked %+v", got)
			}
		})
	}
}

// Of forty runs of one tenant most wait for their turn: each has a place, in the
// order in which it was asked for, whichever replica is asked, and it falls.
func TestEveryRunThatWaitsHasAPlaceThatFalls(t *testing.T) {
	t.Parallel()
	w := startNight(t, "{max_concurrency: 2}")
	second, _ := w.serve(t, sharedRedis(t))
	const all = 40
	ids := make([]string, all)
	for i := range ids {
		status, r := respond(t, []string{w.url, second}[i%2], w.key, task(fmt.Sprintf("turn-%d", i), background))
		if ids[i] = r.Get("id").Str; status != http.StatusOK {
			t.Fatalf("%d %s", status, r.Raw)
		}
	}
	const taken = 2 * 16
	var before queued
	for _, url := range []string{w.url, second} {
		eventually(t, 60*time.Second, func() string {
			before = queued{}
			if status := getJSON(t, url+"/v1/queue?limit=100", w.key, &before); status != http.StatusOK {
				return fmt.Sprint(status)
			}
			return waitsInOrder(before, ids, taken)
		})
	}
	stranger := lastWord(runWeir(t, w.dir, w.environment, "tenant", "create", "other", "--plan", "basic", "--quiet"))
	strangersKey := lastWord(runWeir(t, w.dir, w.environment, "key", "create", "--tenant", stranger, "--name", "x", "--quiet"))
	var none queued
	if status := getJSON(t, w.url+"/v1/queue", strangersKey, &none); status != http.StatusOK || len(none.Data) != 0 {
		t.Errorf("another tenant sees %d %+v", status, none)
	}
	lastOne := ids[all-1]
	at := w.position(t, lastOne)
	if at == nil {
		t.Fatal("the last is shown nowhere")
	}
	for _, id := range ids[:10] {
		if status, r := call(t, http.MethodPost, w.url+"/v1/responses/"+id+"/cancel", w.key); status != http.StatusOK {
			t.Fatalf("%d %s", status, r.Raw)
		}
	}
	eventually(t, 60*time.Second, func() string {
		if now := w.position(t, lastOne); now == nil || *now > *at-8 {
			return fmt.Sprintf("ten fewer are before it, and it is at %v after %d", now, *at)
		}
		return ""
	})
}

// waitsInOrder says what is wrong with the list: those that no replica has taken
// up are the last ones, one behind the other, and all others have a place too.
func waitsInOrder(list queued, ids []string, taken int) string {
	if len(list.Data) < len(ids)-4 || len(list.Data) > len(ids)-2 {
		return fmt.Sprintf("%d are shown of %d, of which the model server makes some", len(list.Data), len(ids))
	}
	places := map[string]int{}
	for _, d := range list.Data {
		if d.Position == nil {
			return fmt.Sprintf("%s has no place", d.ResponseID)
		}
		places[d.ResponseID] = *d.Position
	}
	before := 0
	for i, id := range ids[taken:] {
		if places[id] == 0 || i > 0 && places[id] != before+1 {
			return fmt.Sprintf("number %d is at %d, and the one before it at %d", taken+i, places[id], before)
		}
		before = places[id]
	}
	return ""
}
