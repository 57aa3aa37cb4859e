package responses_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/responses"
)

// order queues a background response.
func (h *house) order(tb testing.TB, runs *responses.Runs) (*responses.Record, responses.RunID) {
	tb.Helper()
	r := h.turn(tb, "", 1)
	r.Status, r.Background, r.Streamed, r.Output = responses.Queued, true, true, nil
	r.Object = []byte(`{"id":"` + r.ID + `","status":"queued"}`)
	if err := runs.Order(tb.Context(), &responses.Ordered{Record: r, Request: []byte(`{"secret":"request"}`)}, noJob); err != nil {
		tb.Fatal(err)
	}
	return r, responses.RunID{Tenant: h.mine.Tenant, Response: r.ID}
}

func noJob(context.Context, pgx.Tx, responses.RunID) error { return nil }

func (h *house) count(tb testing.TB, query string, args ...any) (n int) {
	tb.Helper()
	if err := h.db.Admin(tb).QueryRow(tb.Context(), query, args...).Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestAResponseAndItsJobAreOrderedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	failed := errors.New("no job")
	r := h.turn(t, "", 1)
	r.Status, r.Background = responses.Queued, true
	err := runs.Order(t.Context(), &responses.Ordered{Record: r, Request: []byte(`{}`)}, func(context.Context, pgx.Tx, responses.RunID) error { return failed })
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if n := h.count(t, `SELECT (SELECT count(*) FROM responses) + (SELECT count(*) FROM response_runs)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	err = runs.Order(t.Context(), &responses.Ordered{Record: r, Request: []byte(`{}`), Also: func(context.Context, pgx.Tx) error { return failed }}, noJob)
	if n := h.count(t, `SELECT (SELECT count(*) FROM responses) + (SELECT count(*) FROM response_runs)`); !errors.Is(err, failed) || n != 0 {
		t.Errorf("what belongs to it failed: %v, and %d rows are left", err, n)
	}
	h.order(t, runs)
	if n := h.count(t, `SELECT count(*) FROM response_runs WHERE request::text LIKE '%' || encode('secret', 'hex') || '%'`); n != 0 {
		t.Error("a request lies there unsealed")
	}
}

// Of a run's end and its cancellation at the same moment one counts, and then
// nothing changes any more.
func TestCancelledNeverBecomesCompleted(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	seen := map[string]int{}
	for range 20 {
		r, id := h.order(t, runs)
		if c, err := runs.Claim(t.Context(), id.Tenant, "runner"); c == nil || err != nil {
			t.Fatal(c, err)
		}
		ended := *r
		ended.Status, ended.Object = responses.Completed, []byte(`{"status":"completed"}`)
		ended.Output = items(t, `[{"role":"assistant","content":"answer"}]`)
		var both sync.WaitGroup
		var shown []byte
		both.Go(func() {
			var err error
			if shown, err = runs.Cancel(t.Context(), h.mine, id.Response); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if err := runs.End(t.Context(), &ended); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		first, err := runs.State(t.Context(), h.mine, id.Response)
		if err != nil {
			t.Fatal(err)
		}
		if got := gjson.GetBytes(shown, "status").Str; got != first.Status || gjson.GetBytes(first.Object, "status").Str != first.Status {
			t.Errorf("shown as %s, kept as %s %s", got, first.Status, first.Object)
		}
		seen[first.Status]++
		if err := runs.End(t.Context(), &ended); err != nil {
			t.Fatal(err)
		}
		if _, err := runs.Cancel(t.Context(), h.mine, id.Response); err != nil {
			t.Fatal(err)
		}
		if held, err := runs.Started(t.Context(), id, "runner", []byte(`{}`)); held || err != nil {
			t.Errorf("begun after its end: %v", err)
		}
		if last, err := runs.State(t.Context(), h.mine, id.Response); err != nil || last.Status != first.Status {
			t.Errorf("%s became %s, %v", first.Status, last.Status, err)
		}
		wantItems := map[string]int{responses.Completed: 2, responses.Cancelled: 1}[first.Status]
		if n := h.count(t, `SELECT count(*) FROM response_items WHERE response_id = $1`, id.Response); n != wantItems {
			t.Errorf("%s with %d items", first.Status, n)
		}
	}
	if n := h.count(t, `SELECT count(*) FROM response_runs`); n != 0 || seen[responses.Completed]+seen[responses.Cancelled] != 20 {
		t.Errorf("%d runs are left, %v", n, seen)
	}
}

func TestARunWhoseRunnerIsSilentIsTakenFromIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	_, id := h.order(t, runs)
	claim := func(runner string) *responses.Claimed {
		t.Helper()
		c, err := runs.Claim(t.Context(), id.Tenant, runner)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	reclaim := func() (found []responses.RunID) {
		t.Helper()
		_, err := runs.Reclaim(t.Context(), responses.Silence, responses.Overdue, func(_ context.Context, _ pgx.Tx, id responses.RunID) error {
			found = append(found, id)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	c := claim("first")
	if c == nil || string(c.Request) != `{"secret":"request"}` || c.Lost != 0 || c.Owner() != h.mine {
		t.Fatalf("claimed %+v", c)
	}
	if claim("second") != nil || len(reclaim()) != 0 {
		t.Error("it is taken from a runner who lives")
	}
	if held, err := runs.Hold(t.Context(), id, "first", true); !held || err != nil {
		t.Error(held, err)
	}
	h.count(t, `WITH silent AS (UPDATE response_runs SET renewed_at = now() - interval '1 hour' RETURNING 1) SELECT count(*) FROM silent`)
	if found := reclaim(); len(found) != 1 || found[0] != id {
		t.Errorf("found %v", found)
	}
	if held, err := runs.Hold(t.Context(), id, "first", false); held || err != nil {
		t.Errorf("the first still holds it, %v", err)
	}
	if held, err := runs.Started(t.Context(), id, "first", []byte(`{}`)); held || err != nil {
		t.Errorf("the first begins it, %v", err)
	}
	if c = claim("second"); c == nil || c.Lost != 1 || !c.Shown {
		t.Errorf("claimed again: %+v", c)
	}
	// A run that nobody holds, and whose job never came.
	if released, err := runs.Release(t.Context(), id, "second", time.Minute, false); !released || err != nil {
		t.Error(released, err)
	}
	if len(reclaim()) != 0 {
		t.Error("it is not due yet")
	}
	h.count(t, `WITH late AS (UPDATE response_runs SET due_at = now() - interval '1 hour' RETURNING 1) SELECT count(*) FROM late`)
	if len(reclaim()) != 1 {
		t.Error("its job is lost, and nobody minds")
	}
	if c = claim("third"); c == nil || c.Lost != 1 {
		t.Errorf("waiting counted as a loss: %+v", c)
	}
}

func TestNobodyCancelsAnothersResponse(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	runs := responses.NewRuns(h.db.Worker, h.store)
	_, id := h.order(t, runs)
	for name, o := range map[string]responses.Owner{"tenant": h.stranger, "project": h.sibling} {
		if _, err := runs.Cancel(t.Context(), o, id.Response); !errors.Is(err, responses.ErrNotFound) {
			t.Errorf("another %s: %v", name, err)
		}
		if _, err := runs.State(t.Context(), o, id.Response); !errors.Is(err, responses.ErrNotFound) {
			t.Errorf("another %s looks: %v", name, err)
		}
	}
	foreign := h.stranger.Tenant
	if c, err := runs.Claim(t.Context(), foreign, "runner"); c != nil || err != nil {
		t.Errorf("claimed as another tenant's: %v %v", c, err)
	}
	sync := h.turn(t, "", 1)
	h.keep(t, sync)
	if _, err := runs.Cancel(t.Context(), h.mine, sync.ID); !errors.Is(err, responses.ErrSynchronous) {
		t.Errorf("a synchronous one: %v", err)
	}
}

func TestAnItemLivesUntilItsLastReferrerExpires(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := h.turn(t, "", 1)
	parent.ExpiresAt = past
	child := h.turn(t, parent.ID, 2)
	child.ExpiresAt = future
	deleted := h.turn(t, "", 1)
	grandchild := h.turn(t, deleted.ID, 2)
	grandchild.ExpiresAt = future
	alone := h.turn(t, "", 1)
	alone.ExpiresAt = past
	for _, r := range []*responses.Record{parent, child, deleted, grandchild, alone} {
		h.keep(t, r)
	}
	if err := h.store.Delete(t.Context(), h.mine, deleted.ID); err != nil {
		t.Fatal(err)
	}
	conversation, err := h.store.Converse(t.Context(), h.mine, []byte(`{}`), items(t, `[{"role":"user","content":"stay"}]`))
	if err != nil {
		t.Fatal(err)
	}
	left := func() int { return h.count(t, `SELECT count(*) FROM response_items`) }
	sweep := func() {
		t.Helper()
		if err := responses.Sweep(t.Context(), h.db.Worker, 1); err != nil { // in batches of one
			t.Fatal(err)
		}
	}
	sweep()
	if n := left(); n != 8 {
		t.Errorf("%d items are left, want the two chains' 8", n)
	}
	for _, id := range []string{child.ID, grandchild.ID} {
		if got, err := h.fresh.History(t.Context(), h.mine, id); err != nil || len(got.Items) != 4 {
			t.Errorf("chain of %s: %v, %v", id, got, err)
		}
	}
	h.count(t, `WITH late AS (UPDATE responses SET expires_at = now() - interval '1 hour' RETURNING 1) SELECT count(*) FROM late`)
	sweep()
	if n := left(); n != 0 {
		t.Errorf("%d items outlive their last referrer", n)
	}
	if got, err := h.fresh.Talk(t.Context(), h.mine, conversation.ID); err != nil || len(got.Items) != 1 {
		t.Errorf("the conversation: %v, %v", got, err)
	}
}
