package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/scheduler"
	"weir/scheduler/enginesim"
)

// row is what was measured of one way.
type row struct {
	name      string
	decisions []decision
	hits      float64 // of prompt tokens
	possible  float64 // hits of one cache that forgets nothing
	alone     time.Duration
	flooded   time.Duration
	reserved  time.Duration // in the flood, with a reserve
	jain      float64
	least     float64 // share of the tenant that got least, of an even one
}

// decision is what one kind of prompt costs.
type decision struct {
	size     int
	p50, p99 time.Duration
	ours     time.Duration // CPU of this process for each
	theirs   time.Duration // CPU of the scheduler's own process
}

const (
	decisionEngines = 8
	decisionWorkers = 4
	warmUp          = 40
	prompts         = 50 // that differ
)

// decisions asks for a place and gives it back at once, as a short answer would.
func decisions(ctx context.Context, by way, r *row) error {
	stage, err := build(ctx, decisionEngines, 1000, enginesim.Config{})
	if err != nil {
		return err
	}
	defer stage.close()
	s, err := by.begin(ctx, stage)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, of := range []struct{ size, count int }{{1 << 10, 4000}, {20 << 10, 1000}, {200 << 10, 300}} {
		d, err := decide(ctx, s, of.size, of.count)
		if err != nil {
			return err
		}
		r.decisions = append(r.decisions, d)
	}
	return nil
}

func decide(ctx context.Context, s *subject, size, count int) (decision, error) {
	took := make([]time.Duration, count)
	var mu sync.Mutex
	next := -warmUp
	var ours, theirs time.Duration
	var clock sync.Once
	requests := make([]scheduler.Request, prompts)
	base := strings.Repeat("The river is wide and slow here. ", size/33+1)[:size]
	for i := range requests {
		a := ask{tenant: fmt.Sprint("tenant-", i%10), prompt: fmt.Sprintf("%d %s", i, base), answer: 16}
		requests[i] = a.request()
	}
	workers, ctx := errgroup.WithContext(ctx)
	for range decisionWorkers {
		workers.Go(func() error {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= count {
					return nil
				}
				if i >= 0 {
					clock.Do(func() { ours, theirs = ownCPU(), cpu(s.pid) })
				}
				request := requests[(i+warmUp)%prompts]
				request.ID = fmt.Sprintf("req_%d_%d.1", size, i+warmUp)
				began := time.Now()
				lease, err := s.Schedule(ctx, request)
				if err != nil {
					return err
				}
				if i >= 0 {
					took[i] = time.Since(began)
				}
				lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
				lease.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: request.InputTokens, OutputTokens: 16})
			}
		})
	}
	if err := workers.Wait(); err != nil {
		return decision{}, err
	}
	each := time.Duration(count)
	d := decision{size: size, ours: (ownCPU() - ours) / each, theirs: (cpu(s.pid) - theirs) / each}
	slices.Sort(took)
	d.p50, d.p99 = took[count/2], took[count*99/100]
	return d, nil
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpu is what another process has used; 0 for none, and where there is no /proc.
func cpu(pid int) time.Duration {
	if pid == 0 || runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const user, system, tick = 11, 12, 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
	if len(fields) <= system {
		return 0
	}
	u, uerr := strconv.ParseInt(fields[user], 10, 64)
	k, kerr := strconv.ParseInt(fields[system], 10, 64)
	if errors.Join(uerr, kerr) != nil {
		return 0
	}
	return time.Duration(u+k) * tick
}
