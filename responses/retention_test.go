package responses_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/responses"
)

// An expired response is gone before it is swept, and so is a deleted one: both
// look like one that never was. What goes on from them still has its context.
func TestExpiredAndDeletedResponsesAreAbsent(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	expired, deleted := h.turn(t, "", 1), h.turn(t, "", 1)
	expired.ExpiresAt = time.Now().Add(-time.Second)
	children := map[string]*responses.Record{"expired": h.turn(t, expired.ID, 2), "deleted": h.turn(t, deleted.ID, 2)}
	for _, r := range []*responses.Record{expired, deleted, children["expired"], children["deleted"]} {
		h.keep(t, r)
	}
	if err := h.store.Delete(t.Context(), h.mine, deleted.ID); err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]string{"expired": expired.ID, "deleted": deleted.ID, "never made": responses.NewID()} {
		for name, store := range map[string]*responses.Postgres{"a replica that knew it": h.store, "another": h.fresh} {
			_, history := store.History(t.Context(), h.mine, id)
			_, object := store.Object(t.Context(), h.mine, id)
			_, input := store.Input(t.Context(), h.mine, id)
			for call, err := range map[string]error{"History": history, "Object": object, "Input": input, "Delete": store.Delete(t.Context(), h.mine, id)} {
				if !errors.Is(err, responses.ErrNotFound) {
					t.Errorf("%s, %s, %s: %v", what, name, call, err)
				}
			}
		}
		if child := children[what]; child != nil {
			got, err := h.fresh.History(t.Context(), h.mine, child.ID)
			if err != nil || strings.Join(texts(got), ", ") != "question 1, answer 1, question 2, answer 2" {
				t.Errorf("the child of what is %s knows %v, %v", what, got, err)
			}
		}
	}
}

// A conversation grows by what came to an end that can be gone on from.
func TestWhatAConversationRemembersOfAResponse(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for status, want := range map[string]string{
		responses.Completed:  "question 1, answer 1",
		responses.Incomplete: "question 1, answer 1",
		responses.Failed:     "",
		responses.Cancelled:  "",
		responses.Queued:     "",
		responses.InProgress: "",
	} {
		c, err := h.store.Converse(t.Context(), h.mine, []byte(`{}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := h.turn(t, "", 1)
		r.Conversation, r.Status = c.ID, status
		h.keep(t, r)
		h.keep(t, r) // a receipt that is stored twice
		got, err := h.fresh.Talk(t.Context(), h.mine, c.ID)
		if err != nil || strings.Join(texts(got), ", ") != want {
			t.Errorf("%s: it remembers %v, %v; want %q", status, texts(got), err, want)
		}
	}
}

// Turns that end at the same moment are all there, each in one piece.
func TestTurnsOfOneConversationDoNotMix(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	c, err := h.store.Converse(t.Context(), h.mine, []byte(`{}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	const turns = 12
	var writers sync.WaitGroup
	for n := 1; n <= turns; n++ {
		r := h.turn(t, "", n)
		r.Conversation = c.ID
		writers.Go(func() {
			if err := h.settle(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	got, err := h.fresh.Talk(t.Context(), h.mine, c.ID)
	if err != nil || len(got.Items) != 2*turns {
		t.Fatalf("%d items, %v", len(got.Items), err)
	}
	all, seen := texts(got), map[string]bool{}
	for i := 0; i < len(all); i += 2 {
		var asked, answered int
		if _, err := fmt.Sscanf(all[i]+" "+all[i+1], "question %d answer %d", &asked, &answered); err != nil || asked != answered || seen[all[i]] {
			t.Errorf("%q is followed by %q", all[i], all[i+1])
		}
		seen[all[i]] = true
	}
}
