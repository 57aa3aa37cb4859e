package gateway_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"weir/gateway"
)

// giveBack makes a call whose fields, and what it lends for the engine's body,
// are overwritten as soon as they are given back, as memory that another request
// gets.
func giveBack(h *house) (c gateway.Call, sent chan struct{}) {
	sent = make(chan struct{})
	c = h.call(stream)
	lent := [][]byte{c.Fields}
	c.Alloc = func(n int) []byte {
		lent = append(lent, bytes.Repeat([]byte{'?'}, n)) // what another request left there
		return lent[len(lent)-1]
	}
	c.Sent = func() {
		for _, p := range lent {
			for i := range p {
				p[i] = '!'
			}
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
		if seen := e.seen(); len(seen) != 1 || !strings.Contains(seen[0].body, "hello there, engine") || strings.ContainsAny(seen[0].body, "!?") {
			t.Errorf("an engine saw %+v", seen)
		}
	}
}
