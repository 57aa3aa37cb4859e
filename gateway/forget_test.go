package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"weir/gateway"
)

// giveBack makes a call whose fields are overwritten as soon as they are given
// back, as the memory of a body that another request gets.
func giveBack(h *house) (c gateway.Call, sent chan struct{}) {
	sent = make(chan struct{})
	c = h.call(stream)
	fields := c.Fields
	c.Sent = func() {
		for i := range fields {
			fields[i] = '!'
		}
		close(sent) // a second call panics
	}
	return c, sent
}

func TestAStreamGivesItsPromptBackWhenTheCallerHasSeenSomething(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	e := serve(t, then(events(chunk("a", 1)), func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}, events(chunk("b", 2), usageEvent, doneEvent)))
	h := build(t, []string{e.URL})
	c, sent := giveBack(h)
	go func() { // the stream goes on only once the prompt was given back
		select {
		case <-sent:
			close(goOn)
		case <-t.Context().Done():
		}
	}()
	to := &caller{}
	if err := h.Run(t.Context(), c, to); err != nil {
		t.Fatal(err)
	}
	if want := shown("a") + shown("b") + doneEvent; to.text() != want {
		t.Errorf("the caller saw %q", to.text())
	}
}

func TestAPromptIsKeptWhileAnotherAttemptMayCome(t *testing.T) {
	t.Parallel()
	dying := serve(t, then(events(": hello\n\n"), die))
	spare := serve(t, events(chunk("a", 1), usageEvent, doneEvent))
	h := build(t, []string{dying.URL})
	h.spare(spare.URL)
	c, _ := giveBack(h)
	if err := h.Run(t.Context(), c, &caller{}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*engine{dying, spare} {
		if seen := e.seen(); len(seen) != 1 || !strings.Contains(seen[0].body, "hello there, engine") {
			t.Errorf("an engine saw %+v", seen)
		}
	}
}
