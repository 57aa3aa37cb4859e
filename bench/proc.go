package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc's CPU times: USER_HZ, which is 100 on every
// Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// part is a tree of processes whose work belongs to a target.
type part struct {
	name string
	pid  int
}

type process struct {
	parent int
	name   string
	cpu    time.Duration // own, and of children that have ended
}

// parseStat reads /proc/PID/stat. The name stands in parentheses and may hold
// anything, parentheses too.
func parseStat(text []byte) (process, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("no name in %q", text)
	}
	fields := strings.Fields(string(text[end+1:]))
	const parent, utime, cstime = 1, 11, 14 // after the name, the state first
	if len(fields) <= cstime {
		return process{}, fmt.Errorf("%d fields in %q", len(fields), text)
	}
	p := process{name: string(text[open+1 : end])}
	var err error
	if p.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return process{}, err
	}
	for _, f := range fields[utime : cstime+1] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return process{}, err
		}
		p.cpu += time.Duration(ticks) * clockTick
	}
	return p, nil
}

// processes lists all that run.
func processes() (map[int]process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]process, len(paths))
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
func treeOf(all map[int]process, root int) []int {
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		for pid, p := range all {
			if p.parent == pids[i] {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// cpuOf returns the CPU time that each part has used so far.
func cpuOf(parts []part) ([]time.Duration, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	out := make([]time.Duration, len(parts))
	for i, p := range parts {
		if _, ok := all[p.pid]; !ok {
			return nil, fmt.Errorf("%s (process %d) has ended", p.name, p.pid)
		}
		for _, pid := range treeOf(all, p.pid) {
			out[i] += all[pid].cpu
		}
	}
	return out, nil
}

// childNamed finds our child process of that name.
func childNamed(name string) (int, error) {
	all, err := processes()
	if err != nil {
		return 0, err
	}
	for pid, p := range all {
		if p.parent == os.Getpid() && p.name == name {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no child process %q", name)
}

// memory is the resident memory of a process tree, in bytes.
type memory struct{ now, peak int64 }

func memoryOf(root int) (memory, error) {
	all, err := processes()
	if err != nil {
		return memory{}, err
	}
	var m memory
	for _, pid := range treeOf(all, root) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		one := parseStatus(string(text))
		m.now += one.now
		m.peak += one.peak
	}
	if m.peak == 0 {
		return m, fmt.Errorf("process %d has no memory to read", root)
	}
	return m, nil
}

func parseStatus(text string) memory {
	var m memory
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			m.now = kib << 10
		case "VmHWM":
			m.peak = kib << 10
		}
	}
	return m
}

// forgetPeak starts a new measurement of the peak. Where the kernel doesn't let
// us, the peak stays that of the whole life.
func forgetPeak(root int) {
	all, err := processes()
	if err != nil {
		return
	}
	for _, pid := range treeOf(all, root) {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}
