package admission_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/gateway/admission"
)

// childFolder tells a process of this test binary that it is the one to kill.
const childFolder = "WEIR_TEST_JOURNAL"

func intent(i int) *admission.Intent {
	return &admission.Intent{
		Request: fmt.Sprintf("req_%06d", i), Tenant: "ten_a", Model: "org/m", Operation: "chat",
		StartedAt: time.Unix(1_700_000_000, 0).UTC(), Replica: "rep_child",
	}
}

func asked(i int) *admission.Request {
	in := intent(i)
	return &admission.Request{ID: in.Request, Tenant: in.Tenant, Estimate: one, Intent: in}
}

// TestJournalChild is no test: it is the process that the next one kills. It
// admits without end, releases every second request, and says what it did.
func TestJournalChild(t *testing.T) { //nolint:paralleltest // alone in its process
	dir := os.Getenv(childFolder)
	if dir == "" {
		t.Skip("only as a child of TestJournalSurvivesKill")
	}
	j, err := admission.OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := admission.NewMemory(admission.MemoryConfig{Journal: j})
	for i := 0; ; i++ {
		r := asked(i)
		if v, err := m.Admit(t.Context(), r); err != nil || !v.Admitted {
			t.Fatal(err)
		}
		fmt.Println("admitted", r.ID)
		if i%2 == 1 {
			fmt.Println("releasing", r.ID)
			if err := m.Release(t.Context(), r, one); err != nil {
				t.Fatal(err)
			}
			fmt.Println("released", r.ID)
		}
	}
}

func TestJournalSurvivesKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range 3 { // each finds what those before it left, too
		said := killed(t, dir, 2000+500*round)
		j := openJournal(t, dir)
		m := admission.NewMemory(admission.MemoryConfig{Journal: j})
		left, err := m.Orphans(t.Context(), nil, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, in := range left {
			found[in.Request] = true
		}
		for id, state := range said {
			if state == "admitted" && !found[id] {
				t.Errorf("round %d: %s was admitted, and is lost", round, id)
			}
			if state == "released" && found[id] {
				t.Errorf("round %d: %s was released, and is there", round, id)
			}
		}
		if err := m.Forget(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed runs the child until it has said so many lines, kills it, and returns
// the last word on each request.
func killed(t *testing.T, dir string, lines int) map[string]string {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestJournalChild$")
	child.Env = append(os.Environ(), childFolder+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	in := bufio.NewScanner(out)
	for n := 0; in.Scan(); n++ {
		if n == lines {
			_ = child.Process.Kill()
		}
		if word, id, ok := strings.Cut(in.Text(), " "); ok && strings.HasPrefix(id, "req_") {
			said[id] = word
		}
	}
	_ = child.Wait()
	if len(said) < lines/4 {
		t.Fatalf("the child said only %d", len(said))
	}
	return said
}

func TestJournalPassesOverTornLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir)
	m := admission.NewMemory(admission.MemoryConfig{Journal: j})
	for i := range 3 {
		if _, err := m.Admit(t.Context(), asked(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "intents")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	lines[1] = strings.Replace(lines[1], "chat", "chit", 1) // its checksum is wrong
	lines[2] = lines[2][:len(lines[2])/2]                   // it has no end
	if err := os.WriteFile(path, []byte(strings.Join(lines[:3], "")), 0o600); err != nil {
		t.Fatal(err)
	}
	left, err := admission.NewMemory(admission.MemoryConfig{Journal: openJournal(t, dir)}).Orphans(t.Context(), nil, 10)
	if err != nil || len(left) != 1 || left[0].Request != "req_000000" {
		t.Errorf("%+v, %v, want the first alone", left, err)
	}
}

func TestJournalStaysSmallAndKeepsWhatLives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir)
	m := admission.NewMemory(admission.MemoryConfig{Journal: j})
	if _, err := m.Admit(t.Context(), asked(0)); err != nil {
		t.Fatal(err)
	}
	if err := m.Checkpoint(t.Context(), []admission.Progress{{Tenant: "ten_a", Request: "req_000000", Dispatched: true, Output: 9}}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 80_000; i++ { // some 17 MB
		if _, err := m.Admit(t.Context(), asked(i)); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(t.Context(), asked(i), one); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "intents"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 9<<20 {
		t.Errorf("the journal has %d bytes for one intent", info.Size())
	}
	left, err := heir(t, dir, j).Orphans(t.Context(), nil, 10)
	if err != nil || len(left) != 1 || !left[0].Dispatched || left[0].Output != 9 {
		t.Errorf("%+v, %v, want the first, at its checkpoint", left, err)
	}
}

func TestJournalHasOneOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openJournal(t, dir)
	if j, err := admission.OpenJournal(dir); err == nil {
		_ = j.Close()
		t.Error("a second process got the folder")
	}
}

func TestJournalThatCannotBeWrittenRefuses(t *testing.T) {
	t.Parallel()
	j := openJournal(t, t.TempDir())
	m := admission.NewMemory(admission.MemoryConfig{Journal: j})
	r := asked(1)
	r.Nodes = []admission.Node{{ID: "ten_a", Concurrency: 1}}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if v, err := m.Admit(t.Context(), r); err == nil || v.Admitted {
		t.Errorf("%+v, %v: admitted without an intent", v, err)
	}
	free := asked(2)
	free.Nodes, free.Intent = r.Nodes, nil
	if v, err := m.Admit(t.Context(), free); err != nil || !v.Admitted {
		t.Errorf("%+v, %v: the refused one holds the slot", v, err)
	}
}

func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	m := admission.NewMemory(admission.MemoryConfig{Journal: openJournal(t, t.TempDir())})
	for i := range 1<<17 + 1 {
		_, err := m.Admit(t.Context(), asked(i))
		if full := i == 1<<17; errors.Is(err, admission.ErrFull) != full {
			t.Fatalf("intent %d: %v", i, err)
		}
	}
}
