package proc

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestStatsOfAProcess(t *testing.T) {
	t.Parallel()
	p, err := parseStat([]byte("42 (a (b) c) S 7 42 42 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7"))
	if err != nil || p.Parent != 7 || p.Name != "a (b) c" || p.CPU != 1240*time.Millisecond {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "42 x S 7", "42 (x) S 7 1", "42 (x) S y 42 42 0 -1 4194304 1 2 3 4 100 20 3 1"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if m := parseStatus("Name:\tx\nVmHWM:\t  200 kB\nVmRSS:\t  100 kB\n"); m.Peak != 200<<10 || m.Now != 100<<10 {
		t.Errorf("memory = %+v", m)
	}
	tree := treeOf(map[int]Process{1: {}, 2: {Parent: 1}, 3: {Parent: 2}, 4: {Parent: 9}}, 1)
	slices.Sort(tree)
	if !slices.Equal(tree, []int{1, 2, 3}) {
		t.Errorf("tree = %v", tree)
	}
}

func TestOwnCPUAndMemoryAreSeen(t *testing.T) {
	t.Parallel()
	self := []Part{{"self", os.Getpid()}}
	before, err := CPU(self)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
		sum++
	}
	after, err := CPU(self)
	if err != nil || after[0] <= before[0] {
		t.Errorf("%v, then %v after %d turns, %v", before, after, sum, err)
	}
	if m, err := MemoryOf(os.Getpid()); err != nil || m.Now < 1<<20 || m.Peak < m.Now {
		t.Errorf("memory = %+v, %v", m, err)
	}
	if _, err := CPU([]Part{{"nobody", 1 << 30}}); err == nil {
		t.Error("a process that isn't there has CPU time")
	}
}

func TestThePostmasterIsFoundByItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Postmaster(dir); err == nil {
		t.Error("there is one where none is")
	}
	if err := os.MkdirAll(dir+"/data", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/data/postmaster.pid", []byte("4711\n/data\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := Postmaster(dir); pid != 4711 || err != nil {
		t.Errorf("%d, %v", pid, err)
	}
	if Own() <= 0 || Of(os.Getpid()) < 0 || Of(1<<30) != 0 {
		t.Error("the time of this process can't be told, or that of one that isn't there")
	}
}
