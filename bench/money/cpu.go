package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ownCPU is the time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// postgresCPU is the time that the live processes of the private Postgres have
// used, by Linux's /proc; 0 elsewhere.
func (h *house) postgresCPU() (sum time.Duration) {
	pids, _ := filepath.Glob(filepath.Join(h.dir, "*", "postmaster.pid"))
	if len(pids) != 1 {
		return 0
	}
	text, err := os.ReadFile(pids[0])
	if err != nil {
		return 0
	}
	postmaster, _, _ := strings.Cut(string(text), "\n")
	return childrenCPU(postmaster)
}

// childrenCPU is what a process and its live children have used.
func childrenCPU(parent string) (sum time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		// pid (name) state ppid ... utime stime, the 14th and 15th
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 || f[1] != parent && filepath.Base(filepath.Dir(path)) != parent {
			continue
		}
		for _, ticks := range f[11:13] {
			n, _ := strconv.ParseInt(ticks, 10, 64)
			sum += time.Duration(n) * time.Second / 100
		}
	}
	return sum
}
