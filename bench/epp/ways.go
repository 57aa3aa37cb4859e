package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppreal"
)

// The bands are those of every table.
const (
	topBand = 100
	lowBand = 0
)

// way is one way to schedule.
type way struct {
	name  string
	begin func(ctx context.Context, s *stage) (*subject, error)
}

// subject is a scheduler that runs.
type subject struct {
	scheduler.Scheduler

	pid  int // of its own process; 0: it runs in ours
	stop func()
}

func kinds(binary string) []way {
	all := []way{{"embedded", embedded}, {"`weir scheduler`", remote}}
	if binary != "" {
		all = append(all, way{"llm-d EPP", func(ctx context.Context, s *stage) (*subject, error) { return picker(ctx, binary, s) }})
	}
	return all
}

// config is the scheduler's own default, but for the queues: those of this
// benchmark are as long as it likes.
func config(reserve float64) scheduler.Config {
	c := scheduler.Config{MaxQueued: 100_000, MaxBandQueued: 100_000, MaxFlowQueued: 100_000}
	if reserve > 0 {
		c.Bands = []scheduler.BandConfig{{Priority: topBand}, {Priority: lowBand}}
		c.UsageLimit = scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 1 - reserve}
	}
	return c
}

func own(s *stage) *scheduler.Embedded {
	e := scheduler.New(config(s.reserve), nil)
	e.SetEndpoints(s.endpoints())
	for _, one := range s.endpoints() {
		e.SetHealth(one.ID, scheduler.Healthy)
	}
	return e
}

func embedded(_ context.Context, s *stage) (*subject, error) {
	e := own(s)
	return &subject{Scheduler: e, stop: e.Close}, nil
}

const serveRole = "scheduler"

// remote serves the same scheduler from a process of its own, over loopback.
func remote(ctx context.Context, s *stage) (*subject, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{serveRole, strconv.Itoa(s.port), strconv.Itoa(s.places), fmt.Sprint(s.reserve)}
	for _, e := range s.engines {
		args = append(args, e.ip)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	in, err := cmd.StdinPipe() // whose end ends it
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	client, closeConn, err := dial(strings.TrimSpace(address), s, true)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return &subject{client, cmd.Process.Pid, func() {
		closeConn()
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	}}, nil
}

// serveScheduler is that process: port, places, reserve, and the engines' addresses.
func serveScheduler(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) < 4 {
		return errors.New("want: scheduler PORT PLACES RESERVE IP")
	}
	s := &stage{}
	var errs [3]error
	s.port, errs[0] = strconv.Atoi(args[0])
	s.places, errs[1] = strconv.Atoi(args[1])
	s.reserve, errs[2] = strconv.ParseFloat(args[2], 64)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	for _, ip := range args[3:] {
		s.engines = append(s.engines, &engine{ip: ip})
	}
	near := own(s)
	defer near.Close()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	fmt.Fprintln(stdout, l.Addr())
	fleet := onePool{near, s.endpoints()}
	return epp.New(slog.New(slog.DiscardHandler), fleet, epp.NewMetrics(nil), epp.Config{}).Serve(ctx, l, epp.Serving{})
}

// onePool is a fleet of one.
type onePool struct {
	of        scheduler.Scheduler
	endpoints []scheduler.Endpoint
}

func (p onePool) Pools() []string                                   { return []string{poolName} }
func (p onePool) Endpoints(string) []scheduler.Endpoint             { return p.endpoints }
func (p onePool) Scheduler(name string) (scheduler.Scheduler, bool) { return p.of, name == poolName }

func (p onePool) Band(name string) (int, bool) { return topBand, name == "top" }

const poolName = "pool"

// picker runs llm-d's, with the scorers of its own guide for shared prefixes.
func picker(ctx context.Context, binary string, s *stage) (*subject, error) {
	dir, err := os.MkdirTemp("", "weir-epp")
	if err != nil {
		return nil, err
	}
	e, err := eppreal.Start(ctx, eppreal.Config{
		Binary: binary, Dir: dir, Port: s.port, Places: s.places, Reserve: s.reserve, Objectives: map[string]int{"top": topBand},
		Scorers: []string{"prefix-cache-scorer", "queue-scorer", "kv-cache-utilization-scorer", "active-request-scorer"},
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop := func() {
		e.Stop()
		_ = os.RemoveAll(dir)
	}
	addresses := make(map[string]string)
	for _, one := range s.engines {
		addresses[one.id()] = one.ip
	}
	if err := e.SetEndpoints(ctx, addresses); err != nil {
		stop()
		return nil, err
	}
	client, closeConn, err := dial(e.Address, s, false)
	if err != nil {
		stop()
		return nil, err
	}
	return &subject{client, e.PID(), func() { closeConn(); stop() }}, nil
}

// dial makes a client of whoever serves at the address.
func dial(address string, s *stage, ours bool) (*llmd.Client, func(), error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	client := llmd.New(slog.New(slog.DiscardHandler), llmd.Config{
		Pool: poolName, Own: ours, Picker: llmd.Single(conn, address), Objectives: map[int]string{topBand: "top"}, Allowed: s.known,
	})
	return client, func() {
		client.Close()
		client.Wait()
		_ = conn.Close()
	}, nil
}
