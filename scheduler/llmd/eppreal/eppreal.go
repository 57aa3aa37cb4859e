// Package eppreal runs a real llm-d Endpoint Picker, for tests and benchmarks
// that are given one: a process of its own, in front of a stub of the Kubernetes
// API, from which it learns endpoints and priorities.
package eppreal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"weir/scheduler/llmd/kubestub"
)

const (
	startLimit = 30 * time.Second
	stopLimit  = 10 * time.Second
	takeIn     = 400 * time.Millisecond
	look       = 20 * time.Millisecond
	poolName   = "pool"
)

// Config says what the picker has in front of it.
type Config struct {
	Binary     string         // the program
	Dir        string         // for its files; it has to exist
	Port       int            // of all endpoints, which differ by address; nobody needs to listen there
	Objectives map[string]int // InferenceObjective -> priority
	Places     int            // requests at a time at each endpoint

	MaxQueued     int           // 0: no limit
	MaxBandQueued int           // 0: the picker's own
	TTL           time.Duration // in the queue; 0: ten minutes
	Eviction      bool          // take places back from negative bands
	Reserve       float64       // part of the places that only the highest band may fill; 0: none
	Scorers       []string      // plugins by which an endpoint is picked; none: by the requests that it has
}

// EPP is a picker that runs.
type EPP struct {
	Address string // of its ext_proc service

	kube    *kubestub.Server
	api     *http.Server
	cmd     *exec.Cmd
	log     tail
	cfg     Config
	ports   [3]int // ext_proc, health, metrics
	exited  chan struct{}
	waitErr error
}

// Start runs a picker and returns when it serves.
func Start(ctx context.Context, cfg Config) (*EPP, error) {
	e := &EPP{kube: kubestub.New(poolName, cfg.Port), cfg: cfg}
	e.kube.SetObjectives(cfg.Objectives)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.api = &http.Server{Handler: e.kube, ReadHeaderTimeout: stopLimit}
	go func() { _ = e.api.Serve(l) }() // ends with Stop
	if err := errors.Join(
		os.WriteFile(e.path("kubeconfig"), kubestub.Kubeconfig("http://"+l.Addr().String()), 0o600),
		os.WriteFile(e.path("epp.yaml"), []byte(cfg.document()), 0o600),
	); err != nil {
		return nil, errors.Join(err, e.api.Close())
	}
	for i := range e.ports {
		if e.ports[i], err = freePort(ctx); err != nil {
			return nil, errors.Join(err, e.api.Close())
		}
	}
	e.Address = "127.0.0.1:" + strconv.Itoa(e.ports[0])
	if err := e.Launch(ctx); err != nil {
		return nil, errors.Join(err, e.api.Close())
	}
	return e, nil
}

func (e *EPP) path(name string) string { return filepath.Join(e.cfg.Dir, name) }

// Launch starts the process, again if it was killed, at the same address. It
// returns when it serves.
func (e *EPP) Launch(ctx context.Context) error {
	e.cmd = exec.Command(e.cfg.Binary, //nolint:gosec,noctx // the caller names it; Kill and Stop end it
		"--pool-name", poolName, "--pool-namespace", kubestub.Namespace, "--config-file", e.path("epp.yaml"),
		"--grpc-port", strconv.Itoa(e.ports[0]), "--grpc-health-port", strconv.Itoa(e.ports[1]), "--metrics-port", strconv.Itoa(e.ports[2]),
		"--allow-experimental-plugins", "--secure-serving=false", "--health-checking", "--tracing=false", "--metrics-endpoint-auth=false", "--drain-timeout", "1s", "--v", "0")
	e.cmd.Env = append(os.Environ(), "KUBECONFIG="+e.path("kubeconfig"))
	e.cmd.Stdout, e.cmd.Stderr = &e.log, &e.log
	e.cmd.SysProcAttr = leash()
	if err := e.cmd.Start(); err != nil {
		return err
	}
	e.exited = make(chan struct{})
	go func() {
		defer close(e.exited)
		e.waitErr = e.cmd.Wait()
	}()
	if err := e.ready(ctx); err != nil {
		e.Kill()
		return fmt.Errorf("the picker doesn't serve: %w\n%s", err, e.log.last(2000))
	}
	return nil
}

// ready waits until the picker serves and has read what the API has.
func (e *EPP) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	conn, err := grpc.NewClient(e.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := e.until(ctx, func() bool {
		r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
	}); err != nil {
		return err
	}
	select {
	case <-e.kube.Synced():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *EPP) until(ctx context.Context, so func() bool) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.exited:
			return fmt.Errorf("it has ended: %w", e.waitErr)
		case <-tick.C:
		}
	}
	return nil
}

// SetEndpoints makes these the pool's, by name and address, and returns when
// the picker has had time to take it in: it doesn't tell that it has, but of
// endpoints whose load it can read.
func (e *EPP) SetEndpoints(ctx context.Context, addresses map[string]string) error {
	pods := make([]kubestub.Pod, 0, len(addresses))
	for name, ip := range addresses {
		pods = append(pods, kubestub.Pod{Name: name, IP: ip, Labels: map[string]string{"llm-d.ai/engine-type": "vllm"}})
	}
	e.kube.SetPods(pods)
	taken := time.NewTimer(takeIn)
	defer taken.Stop()
	select {
	case <-taken.C:
		return nil
	case <-e.exited:
		return fmt.Errorf("the picker has ended: %w\n%s", e.waitErr, e.log.last(2000))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SetObjectives makes these the names by which requests get priorities, as soon
// as the picker has heard of it.
func (e *EPP) SetObjectives(priorities map[string]int) { e.kube.SetObjectives(priorities) }

// MetricsURL is where its metrics are.
func (e *EPP) MetricsURL() string { return fmt.Sprintf("http://127.0.0.1:%d/metrics", e.ports[2]) }

// PID is the process's.
func (e *EPP) PID() int { return e.cmd.Process.Pid }

// Kill ends the process at once, as a crash does.
func (e *EPP) Kill() {
	_ = e.cmd.Process.Kill()
	<-e.exited
}

// Stop ends the process in order, and the API.
func (e *EPP) Stop() {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(stopLimit, func() { _ = e.cmd.Process.Kill() })
	<-e.exited
	late.Stop()
	_ = e.api.Close()
}

func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}
