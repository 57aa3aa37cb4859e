package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"weir/scheduler/enginesim"
)

func simCommand() *cobra.Command {
	var listen string
	var anywhere bool
	var events, replay string
	cfg := enginesim.Config{}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a simulated model server, for development and tests",
		Long: `Run a simulated model server that behaves like vLLM: continuous batching, a block
prefix cache, vLLM's endpoints, metrics and error shapes, and faults on demand.
It has no model: its text is made of random words, and it says that it is simulated.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !anywhere && !onLoopback(listen) {
				return fmt.Errorf("--listen %s: a simulated model server asks nobody for a key, so it listens on the loopback interface (127.0.0.1, ::1, localhost) unless --listen-anywhere says otherwise", listen)
			}
			if cfg.MetricNames != enginesim.VLLM && cfg.MetricNames != enginesim.SGLang {
				return fmt.Errorf("--metric-names is %q: write vllm or sglang", cfg.MetricNames)
			}
			switch cfg.Priorities {
			case enginesim.NoPriorities, enginesim.LowerFirst, enginesim.HigherFirst, enginesim.Ignored:
			default:
				return fmt.Errorf("--priorities is %q: write lower-first, higher-first or ignored", cfg.Priorities)
			}
			cfg.KVEvents = events != ""
			s, err := startSim(cmd.Context(), listen, cfg)
			if err != nil {
				return err
			}
			if err := s.publish(cmd.Context(), cfg.Ranks, events, replay); err != nil {
				s.stop()
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "simulated model server on %s\n", s.url)
			<-cmd.Context().Done()
			s.stop()
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "address on the loopback interface")
	f.BoolVar(&anywhere, "listen-anywhere", false, "let --listen be any address: whoever reaches it may use it and its fault switches")
	f.StringSliceVar(&cfg.Models, "model", []string{"sim-chat"}, "model names that it serves")
	f.Uint64Var(&cfg.Seed, "seed", 1, "the same seed and request give the same text")
	f.DurationVar(&cfg.TTFT, "ttft", 0, "fixed part of the time to the first token (default 15ms)")
	f.DurationVar(&cfg.ITL, "itl", 0, "time between two tokens of a stream (default 5ms)")
	f.IntVar(&cfg.PrefillRate, "prefill-rate", 0, "uncached prompt tokens a second (default 50000)")
	f.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", 0, "sequences that run at once (default 64)")
	f.IntVar(&cfg.KVBlocks, "kv-blocks", 0, "cache capacity in blocks of 16 tokens (default 16384)")
	f.IntVar(&cfg.HostBlocks, "host-blocks", 0, "capacity of a second tier, for blocks that are evicted (default none)")
	f.IntVar(&cfg.StorageBlocks, "storage-blocks", 0, "capacity of a third tier (default none)")
	f.StringVar(&events, "kv-events", "", "publish what happens in the cache, as vLLM does: tcp://127.0.0.1:5557; further ranks at the ports after it")
	f.StringVar(&replay, "kv-replay", "", "send again what was missed of it: tcp://127.0.0.1:5558; further ranks at the ports after it")
	f.IntVar(&cfg.ContextLength, "context-length", 0, "tokens of prompt and answer together (default 32768)")
	f.StringVar((*string)(&cfg.MetricNames), "metric-names", string(enginesim.VLLM), "whose names its metrics have: vllm or sglang, which also tells cached tokens by tier where a request asks for that")
	f.StringVar((*string)(&cfg.Priorities), "priorities", "", "what it makes of the priority of requests: lower-first, higher-first or ignored (default: it refuses them)")
	f.StringVar(&cfg.Role, "role", "", "decode and prefill-decode have a sidecar, which has the server that x-prefiller-host-port names compute a prompt; prefill and none don't")
	f.StringVar(&cfg.Revision, "revision", "", "caches of servers of another revision are refused")
	f.IntVar(&cfg.Ranks, "ranks", 1, "data-parallel ranks, each with a cache and slots of its own, named by x-data-parallel-rank")
	f.BoolVar(&cfg.Reasoning, "reasoning", false, "think before each answer")
	f.BoolVar(&cfg.ZeroLatency, "zero-latency", false, "answer without waiting, for benchmarks")
	return cmd
}

// onLoopback reports whether only this machine reaches the address. A name
// other than localhost might resolve to anything, so it doesn't count.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// sim is one simulated engine behind a loopback listener.
type sim struct {
	url    string
	server *http.Server
	engine *enginesim.Engine
	ended  chan struct{}
}

// startSim serves a simulated engine on the address until stop.
func startSim(ctx context.Context, address string, cfg enginesim.Config) (*sim, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("simulated model server: %w", err)
	}
	s := &sim{url: "http://" + listener.Addr().String(), engine: enginesim.New(cfg), ended: make(chan struct{})}
	s.server = &http.Server{Handler: s.engine, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.ended)
		_ = s.server.Serve(listener) // ends with ErrServerClosed, by stop
	}()
	return s, nil
}

// stop ends running answers and the listener.
func (s *sim) stop() {
	s.engine.Close()
	_ = s.server.Close()
	<-s.ended
}
