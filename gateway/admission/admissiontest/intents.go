//nolint:thelper // these are the tests themselves: a failure should name their own line; who runs them is parallel
package admissiontest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"weir/gateway/admission"
)

// replica is the one that asks, and dies where a guarantee says so.
const replica = "rep_a"

func intentGuarantees() []guarantee {
	return []guarantee{
		{"the intent of a request whose replica died is found, with its last checkpoint", intentFound},
		{"a request without limits has an intent all the same", intentAlone},
		{"a refused and a released request leave no intent", intentGone},
		{"an intent that a release isn't given stays", intentStays},
		{"a repeated call keeps one intent", intentOnce},
		{"a checkpoint that comes after the end brings nothing back", checkpointLate},
		{"orphans are found in parts, and once forgotten no more", orphansInParts},
		{"tenants' intents never meet", intentsApart},
	}
}

func intended(id, tenant string, nodes ...admission.Node) *admission.Request {
	r := request(id, nodes, one)
	r.Tenant = tenant
	r.Intent = &admission.Intent{
		Request: id, Tenant: tenant, Project: "prj_a", Key: "key_a", Model: "org/m", Operation: "chat", Tier: "default", Mode: "enforce",
		PriceVersion: 7, Prompt: 120, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Replica: replica, Chunks: []int64{3, 9},
	}
	return r
}

func ask(t *testing.T, f Fixture, r *admission.Request, admitted bool) {
	t.Helper()
	if v, err := f.Store.Admit(t.Context(), r); err != nil || v.Admitted != admitted {
		t.Fatalf("%s: verdict = %+v, %v, want admitted = %v", r.ID, v, err, admitted)
	}
}

func end(t *testing.T, f Fixture, r *admission.Request) {
	t.Helper()
	if err := f.Store.Release(t.Context(), r, one); err != nil {
		t.Fatal(err)
	}
}

// left is what the replica leaves when it dies now, by request id.
func left(t *testing.T, f Fixture, most int) (admission.Intents, []admission.Intent) {
	t.Helper()
	heir := f.Die(t)
	found, err := heir.Orphans(t.Context(), []string{"rep_other", replica}, most)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(found, func(a, b admission.Intent) int { return cmp.Compare(a.Request, b.Request) })
	return heir, found
}

func ids(list []admission.Intent) (all []string) {
	for _, in := range list {
		all = append(all, in.Request)
	}
	return all
}

func wantLeft(t *testing.T, f Fixture, want ...string) {
	t.Helper()
	if _, found := left(t, f, 100); !slices.Equal(ids(found), want) {
		t.Errorf("left over: %v, want %v", ids(found), want)
	}
}

func intentFound(t *testing.T, f Fixture) {
	r := intended("req_1", "ten_a", admission.Node{ID: "ten_a", Concurrency: 3})
	other := intended("req_2", "ten_a", admission.Node{ID: "ten_a", Concurrency: 3})
	ask(t, f, r, true)
	ask(t, f, other, true)
	for n := range int64(3) {
		err := f.Store.Checkpoint(t.Context(), []admission.Progress{
			{Tenant: "ten_a", Request: "req_1", Dispatched: true, Input: 118, Output: 10 * n},
			{Tenant: "ten_a", Request: "req_unknown", Dispatched: true},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, found := left(t, f, 100)
	want := []admission.Intent{*r.Intent, *other.Intent}
	want[0].Dispatched, want[0].Input, want[0].Output = true, 118, 20
	if d := diff.Diff(want, found); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func intentAlone(t *testing.T, f Fixture) {
	ask(t, f, intended("req_1", "ten_a"), true)
	ended := intended("req_2", "ten_a", admission.Node{ID: "ten_a"})
	ask(t, f, ended, true)
	end(t, f, ended)
	wantLeft(t, f, "req_1")
}

func intentGone(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	first := intended("req_1", "ten_a", node)
	ask(t, f, first, true)
	ask(t, f, intended("req_2", "ten_a", node), false)
	end(t, f, first)
	end(t, f, first)
	wantLeft(t, f)
}

func intentStays(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	first := intended("req_1", "ten_a", node)
	ask(t, f, first, true)
	slots := *first
	slots.Intent = nil
	end(t, f, &slots)
	ask(t, f, intended("req_2", "ten_a", node), true)
	wantLeft(t, f, "req_1", "req_2")
}

func intentOnce(t *testing.T, f Fixture) {
	r := intended("req_1", "ten_a", admission.Node{ID: "ten_a", Concurrency: 1})
	for range 3 {
		ask(t, f, r, true)
	}
	wantLeft(t, f, "req_1")
}

func checkpointLate(t *testing.T, f Fixture) {
	r := intended("req_1", "ten_a")
	ask(t, f, r, true)
	end(t, f, r)
	if err := f.Store.Checkpoint(t.Context(), []admission.Progress{{Tenant: "ten_a", Request: "req_1", Dispatched: true}}); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, f)
}

func orphansInParts(t *testing.T, f Fixture) {
	var want []string
	for i := range 25 {
		r := intended(fmt.Sprintf("req_%02d", i), fmt.Sprintf("ten_%d", i%3))
		ask(t, f, r, true)
		want = append(want, r.ID)
	}
	heir, found := left(t, f, 10)
	var all []string
	for len(found) > 0 {
		if len(found) > 10 {
			t.Fatalf("%d at once, want at most 10", len(found))
		}
		all = append(all, ids(found)...)
		for range 2 { // the second time does nothing
			if err := heir.Forget(t.Context(), found); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if found, err = heir.Orphans(t.Context(), []string{replica}, 10); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	if !slices.Equal(all, want) {
		t.Errorf("found %v, want each of 25 once", all)
	}
}

func intentsApart(t *testing.T, f Fixture) {
	a, b := intended("req_a", "ten_a"), intended("req_b", "ten_b")
	ask(t, f, a, true)
	ask(t, f, b, true)
	end(t, f, a)
	if _, found := left(t, f, 100); len(found) != 1 || found[0].Tenant != "ten_b" {
		t.Errorf("left over: %+v, want the other tenant's", found)
	}
}
