// Package proc reads from Linux's /proc what processes have used: of CPU time, of
// memory.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of /proc's CPU times: USER_HZ, which is 100 on every
// Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// Part is a tree of processes whose work belongs together.
type Part struct {
	Name string
	PID  int
}

// Process is one that runs.
type Process struct {
	Parent int
	Name   string
	CPU    time.Duration // own, and of children that have ended
}

// parseStat reads /proc/PID/stat. The name stands in parentheses and may hold
// anything, parentheses too.
func parseStat(text []byte) (Process, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("no name in %q", text)
	}
	fields := strings.Fields(string(text[end+1:]))
	const parent, utime, cstime = 1, 11, 14 // after the name, the state first
	if len(fields) <= cstime {
		return Process{}, fmt.Errorf("%d fields in %q", len(fields), text)
	}
	p := Process{Name: string(text[open+1 : end])}
	var err error
	if p.Parent, err = strconv.Atoi(fields[parent]); err != nil {
		return Process{}, err
	}
	for _, f := range fields[utime : cstime+1] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return Process{}, err
		}
		p.CPU += time.Duration(ticks) * clockTick
	}
	return p, nil
}

// List is all processes that run, by id.
func List() (map[int]Process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]Process, len(paths))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if all[pid], err = parseStat(text); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no /proc here: CPU can be measured on Linux only")
	}
	return all, nil
}

// treeOf returns a process and all below it.
func treeOf(all map[int]Process, root int) []int {
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		for pid, p := range all {
			if p.Parent == pids[i] {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// CPU returns the time that each part has used so far. It is an error where one has
// ended.
func CPU(parts []Part) ([]time.Duration, error) {
	all, err := List()
	if err != nil {
		return nil, err
	}
	out := make([]time.Duration, len(parts))
	for i, p := range parts {
		if _, ok := all[p.PID]; !ok {
			return nil, fmt.Errorf("%s (process %d) has ended", p.Name, p.PID)
		}
		for _, pid := range treeOf(all, p.PID) {
			out[i] += all[pid].CPU
		}
	}
	return out, nil
}

// Child finds this process's child of that name.
func Child(name string) (int, error) {
	all, err := List()
	if err != nil {
		return 0, err
	}
	for pid, p := range all {
		if p.Parent == os.Getpid() && p.Name == name {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no child process %q", name)
}

// Memory is the resident memory of a process tree, in bytes.
type Memory struct{ Now, Peak int64 }

// MemoryOf reads that of a process and all below it.
func MemoryOf(root int) (Memory, error) {
	all, err := List()
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for _, pid := range treeOf(all, root) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		one := parseStatus(string(text))
		m.Now += one.Now
		m.Peak += one.Peak
	}
	if m.Peak == 0 {
		return m, fmt.Errorf("process %d has no memory to read", root)
	}
	return m, nil
}

func parseStatus(text string) Memory {
	var m Memory
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			m.Now = kib << 10
		case "VmHWM":
			m.Peak = kib << 10
		}
	}
	return m
}

// ForgetPeak starts a new measurement of the peak. Where the kernel doesn't let
// us, the peak stays that of the whole life.
func ForgetPeak(root int) {
	all, err := List()
	if err != nil {
		return
	}
	for _, pid := range treeOf(all, root) {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}

// Own is the CPU time that this process has used; 0 where that can't be told.
func Own() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Of is the CPU time that a process and all below it have used; 0 where that
// can't be told.
func Of(pid int) time.Duration {
	used, err := CPU([]Part{{PID: pid}})
	if err != nil {
		return 0
	}
	return used[0]
}

// Postmaster is the first process of the Postgres that keeps its data somewhere
// right below dir.
func Postmaster(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "postmaster.pid"))
	if err != nil || len(files) != 1 {
		return 0, errors.Join(fmt.Errorf("%d postmaster.pid below %s", len(files), dir), err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}
