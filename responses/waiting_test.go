package responses_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"weir/responses"
)

// Runs are taken up in the order in which they were asked for, whoever asks for
// work, and what waits is shown in that order with places that fall.
func TestWhatWaitsIsShownInTheOrderInWhichItIsTakenUp(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	var ids []string
	for range 4 {
		r, _ := h.order(t, runs)
		ids = append(ids, r.ID)
	}
	shown := func(o responses.Owner, id string, most int) (found []string, places []int) {
		t.Helper()
		list, err := runs.Waiting(t.Context(), o, id, most)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list {
			found, places = append(found, w.ID), append(places, w.Place)
		}
		return found, places
	}
	want := func(what string, wantIDs []string, wantPlaces ...int) {
		t.Helper()
		if found, places := shown(h.mine, "", 10); !slices.Equal(found, wantIDs) || !slices.Equal(places, wantPlaces) {
			t.Errorf("%s: %v at %v, want %v at %v", what, found, places, wantIDs, wantPlaces)
		}
	}
	want("ordered", ids, 1, 2, 3, 4)
	if found, places := shown(h.mine, ids[2], 10); !slices.Equal(found, ids[2:3]) || !slices.Equal(places, []int{3}) {
		t.Errorf("one by its name: %v at %v", found, places)
	}
	if found, _ := shown(h.mine, "", 2); !slices.Equal(found, ids[:2]) {
		t.Errorf("a page of two: %v", found)
	}
	for name, o := range map[string]responses.Owner{"tenant": h.stranger, "project": h.sibling} {
		if found, _ := shown(o, "", 10); len(found) != 0 {
			t.Errorf("another %s sees %v", name, found)
		}
	}

	claim := func() *responses.Claimed {
		t.Helper()
		c, err := runs.Claim(t.Context(), h.mine.Tenant, "runner")
		if err != nil || c == nil {
			t.Fatal(c, err)
		}
		return c
	}
	if c := claim(); c.Response != ids[0] {
		t.Errorf("%s is taken up first, want %s", c.Response, ids[0])
	}
	want("taken up, and waiting for a model server", ids, 1, 2, 3, 4)
	first := responses.RunID{Tenant: h.mine.Tenant, Response: ids[0]}
	if held, err := runs.Started(t.Context(), first, "runner", []byte(`{}`)); !held || err != nil {
		t.Fatal(held, err)
	}
	want("made", ids[1:], 1, 2, 3)

	// One that is to be looked at later lets others go before.
	if c := claim(); c.Response != ids[1] {
		t.Errorf("%s is taken up second, want %s", c.Response, ids[1])
	}
	if released, err := runs.Release(t.Context(), responses.RunID{Tenant: h.mine.Tenant, Response: ids[1]}, "runner", time.Hour, false); !released || err != nil {
		t.Fatal(released, err)
	}
	want("given back for an hour", ids[1:], 3, 1, 2)
	for _, id := range ids[2:] {
		if c := claim(); c.Response != id {
			t.Errorf("%s is taken up, want %s", c.Response, id)
		}
	}
	c, err := runs.Claim(t.Context(), h.mine.Tenant, "runner")
	if again, ok := errors.AsType[*responses.Again](err); c != nil || !ok || again.After < 59*time.Minute || again.After > time.Hour {
		t.Errorf("what is due in an hour is claimed: %v, %v", c, err)
	}
	if c, err := runs.Claim(t.Context(), h.stranger.Tenant, "runner"); c != nil || err != nil {
		t.Errorf("where nothing waits: %v, %v", c, err)
	}
}

// Runs that wait behind others of their tenant for longer than a job may be late
// are not given job after job.
func TestRunsThatWaitForOthersAreNotLost(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	h.order(t, runs)
	late := func() {
		t.Helper()
		h.count(t, `WITH late AS (UPDATE response_runs SET due_at = now() - interval '1 hour' RETURNING 1) SELECT count(*) FROM late`)
	}
	late()
	if err := runs.Defer(t.Context(), h.stranger.Tenant); err != nil {
		t.Fatal(err)
	}
	if n, err := runs.Reclaim(t.Context(), responses.Silence, responses.Overdue, noJob); n != 1 || err != nil {
		t.Errorf("%d are overdue, %v; another tenant's wait is no reason", n, err)
	}
	late()
	if err := runs.Defer(t.Context(), h.mine.Tenant); err != nil {
		t.Fatal(err)
	}
	if n, err := runs.Reclaim(t.Context(), responses.Silence, responses.Overdue, noJob); n != 0 || err != nil {
		t.Errorf("%d are overdue that wait for their turn, %v", n, err)
	}
}
