// Command bench measures what a gateway costs: CPU, latency and memory of Weir
// beside a bare proxy (the floor), nginx and, where one is given, a peer, all in
// front of one constant upstream on the same machine and in interleaved rounds.
// It checks every answer and, at the end, every receipt; a wrong one fails it.
//
// CPU is counted from /proc over the whole process trees, Postgres and Redis
// included: unlike latency it adds up, and noisy neighbours disturb it least.
// Compare ratios to the floor of the same run, not numbers of two machines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir/bench/proc"
	"weir/bench/section"
	"weir/migrations/pgserver"
)

const directName = "direct"

// options are the command's flags.
type options struct {
	weir     string
	rounds   int
	scale    float64
	idle     int
	open     int
	out      string
	mockAddr string
	peer     string
	peerName string
	peerKey  string
	peerPID  int
	agents   int
	turns    int
	real     string
	chains   bool
	profile  time.Duration
	keep     string
}

// bench is one run of the command.
type bench struct {
	progress io.Writer
	dir      string // all that the run makes; removed at its end
	mockAddr string
	rounds   int
	idle     int
	crowd    int // streams to hold open at once, at last

	client       *client
	targets      []*target
	secure       []*target          // with a certificate
	overWire     map[string]*client // by how bytes travel to these
	children     []*child
	postgres     *pgserver.Server
	installation *installation
	opsToken     string // of the gateways' operators' listeners; empty: closed

	made    Stats // what the mock made for metered targets
	results results
	held    map[string]held
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realMain(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 1 {
		switch args[0] {
		case "mock":
			return serveRole(args[1], newMock())
		case "engines":
			return serveRole(args[1], newEngineSet(agentGap))
		case floorName:
			return serveRole(args[1], newFloor("http://"+args[2]), args[3:]...)
		}
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.weir, "weir", "", "the weir program to measure; empty: only the floor and nginx")
	flags.IntVar(&o.rounds, "rounds", 5, "interleaved rounds")
	flags.Float64Var(&o.scale, "scale", 1, "multiple of the number of requests")
	flags.IntVar(&o.idle, "idle", 1000, "idle streams to hold open")
	flags.IntVar(&o.open, "open", 10_000, "streams to hold open at once, as far as the limit on open files allows")
	flags.StringVar(&o.out, "o", "", "file whose marked section takes the report")
	flags.StringVar(&o.mockAddr, "mock", "", "address for the upstream (default: a free port); a peer must send there")
	flags.StringVar(&o.peer, "peer", "", "base URL of another gateway that runs in front of -mock")
	flags.StringVar(&o.peerName, "peer-name", "peer", "what to call it")
	flags.StringVar(&o.peerKey, "peer-key", os.Getenv("BENCH_PEER_KEY"), "its key, better given as BENCH_PEER_KEY")
	flags.IntVar(&o.peerPID, "peer-pid", 0, "its process, whose tree is measured")
	flags.IntVar(&o.agents, "agents", 0, "measure so many agents at once through weir, and the isolation of bands on a real clock, instead of the tables")
	flags.IntVar(&o.turns, "turns", 20, "with -agents: turns of each session")
	flags.StringVar(&o.real, "isolation-real", "", "folder in which deploy/realmodel/install.sh installed a model: measure the isolation of bands at it instead of the tables; without one there it is left out")
	flags.BoolVar(&o.chains, "chains", false, "measure a turn of chains of responses beside the Chat requests that say the same, instead of the tables")
	flags.DurationVar(&o.profile, "profile", 0, "profile the gateway for so long under each of three loads and say where its CPU goes, by stage, instead of the tables")
	flags.StringVar(&o.keep, "keep", "", "with -profile: folder that takes the profiles")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.rounds < 1 || o.scale <= 0 || o.idle < 1 || o.open < 1 || o.turns < 1 || o.agents < 0 {
		return errors.New("-rounds, -scale, -idle, -open and -turns must be positive")
	}
	if o.agents > 0 {
		return o.runAgents(ctx, args, stdout, stderr)
	}
	if o.real != "" {
		return o.runReal(ctx, args, stdout, stderr)
	}
	if o.chains {
		return o.runChains(ctx, args, stdout, stderr)
	}
	if o.profile > 0 {
		return o.runProfile(ctx, args, stdout, stderr)
	}
	return o.run(ctx, args, stdout, stderr)
}

func (o options) run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if o.weir != "" {
		if err := runnable(o.weir); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	b := &bench{
		progress: stderr, dir: dir, mockAddr: o.mockAddr, rounds: o.rounds, idle: o.idle,
		client: newClient(), results: results{}, held: map[string]held{},
	}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	if b.crowd, err = room(o.open); err != nil {
		return err
	}
	if err := b.start(ctx, o); err != nil {
		return err
	}
	ls, secure := loads(o.scale), secureLoads(o.scale)
	if err := b.warmUp(ctx, ls); err != nil {
		return err
	}
	// First, while no big prompt has grown a heap that idle streams could use.
	if err := b.holdStreams(ctx, o.idle); err != nil {
		return err
	}
	if err := b.measureAll(ctx, o.rounds, slices.Concat(ls, secure)); err != nil {
		return err
	}
	if err := b.holdCrowd(ctx); err != nil {
		return err
	}
	if b.installation != nil {
		if _, err := b.settled(ctx); err != nil {
			return fmt.Errorf("receipts are wrong: %w", err)
		}
	}
	text := b.report(ls, secure, "go run ./bench "+shown(args), time.Now())
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if o.out != "" {
		return section.Place(o.out, "Performance", "bench", text)
	}
	return nil
}

// shown hides a key among the arguments.
func shown(args []string) string {
	out := slices.Clone(args)
	for i, a := range out {
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case name != "peer-key":
		case joined:
			out[i] = "-peer-key=..."
		case i+1 < len(out):
			out[i+1] = "..."
		}
	}
	return strings.Join(out, " ")
}

// start brings up the upstream and every target.
func (b *bench) start(ctx context.Context, o options) error {
	if b.mockAddr == "" {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		b.mockAddr = hostPort(port)
	}
	if _, err := b.startSelf(ctx, "mock", b.mockAddr, []string{"GOMAXPROCS=1"}); err != nil {
		return err
	}
	b.targets = append(b.targets, &target{name: directName, url: "http://" + b.mockAddr})

	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	c, err := b.startSelf(ctx, floorName, hostPort(port), nil, b.mockAddr)
	if err != nil {
		return err
	}
	b.targets = append(b.targets, &target{name: floorName, url: "http://" + hostPort(port), parts: []proc.Part{{Name: floorName, PID: c.pid()}}})
	if err := b.startNginx(ctx); err != nil {
		return err
	}
	if o.peer != "" {
		if o.peerPID == 0 {
			return errors.New("-peer needs -peer-pid: the process to measure")
		}
		b.targets = append(b.targets, &target{name: o.peerName, url: strings.TrimRight(o.peer, "/"), key: o.peerKey, parts: []proc.Part{{Name: o.peerName, PID: o.peerPID}}})
	}
	if o.weir != "" {
		if err := b.startWeir(ctx, o.weir); err != nil {
			return err
		}
	}
	return b.startSecure(ctx)
}

// stop ends all that was started, the last first.
func (b *bench) stop(ctx context.Context) error {
	b.client.http.CloseIdleConnections()
	for _, c := range b.overWire {
		c.http.CloseIdleConnections()
	}
	for _, c := range slices.Backward(b.children) {
		c.stop()
	}
	if b.postgres == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	return b.postgres.Stop(ctx)
}

func (b *bench) say(text string) { _, _ = fmt.Fprintln(b.progress, "bench:", text) }
