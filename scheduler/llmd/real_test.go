package llmd_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppreal"
	"weir/scheduler/schedulertest"
)

// realPort is where the endpoints of a real picker would listen. Nobody does:
// it counts its own requests and reads their load in vain.
const realPort = 9

// realBinary is the real picker that the environment names.
func realBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("EPP_BIN")
	if binary == "" {
		t.Skip("EPP_BIN names no Endpoint Picker: `make test-epp` builds one")
	}
	return binary
}

// realAddress is that of the contract's endpoint: a is 127.0.1.1, b 127.0.1.2.
func realAddress(id string) string { return fmt.Sprintf("127.0.1.%d", id[0]-'a'+1) }

// realKnown answers for them.
func realKnown(hostport string) (scheduler.Target, bool) {
	host, _, _ := net.SplitHostPort(hostport)
	last, ok := strings.CutPrefix(host, "127.0.1.")
	if !ok || len(last) != 1 {
		return scheduler.Target{}, false
	}
	id := string(last[0] - '1' + 'a')
	return scheduler.Target{Endpoint: id, URL: "http://" + id + ".test"}, true
}

// realSubject is a client of a real picker.
type realSubject struct {
	*llmd.Client

	t      *testing.T
	picker *eppreal.EPP
}

func (s realSubject) SetEndpoints(endpoints []scheduler.Endpoint) {
	addresses := make(map[string]string, len(endpoints))
	for _, e := range endpoints {
		addresses["engine-"+e.ID] = realAddress(e.ID)
	}
	if err := s.picker.SetEndpoints(s.t.Context(), addresses); err != nil {
		s.t.Fatal(err)
	}
}

func pause(d time.Duration) { <-time.After(d) }

// startReal runs a picker until the test ends.
func startReal(t *testing.T, cfg eppreal.Config) *eppreal.EPP {
	t.Helper()
	cfg.Binary, cfg.Dir, cfg.Port = realBinary(t), t.TempDir(), realPort
	cfg.Objectives = objectives()
	picker, err := eppreal.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(picker.Stop)
	return picker
}

func realClient(t *testing.T, picker *eppreal.EPP, cfg llmd.Config) *llmd.Client {
	t.Helper()
	conn, err := grpc.NewClient(picker.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pool, cfg.Picker, cfg.Objectives, cfg.Allowed = "p", llmd.Single(conn, "picker"), bands(), realKnown
	c := llmd.New(slog.New(slog.DiscardHandler), cfg)
	t.Cleanup(func() {
		c.Close()
		c.Wait()
		_ = conn.Close()
	})
	return c
}

// A real picker has one number of places for all endpoints alike, and gives
// them out by their sum. What it counts becomes known a moment after, so that a
// storm may pass it by one; and it sweeps its queues once a second.
func TestClientKeepsTheContractWithARealPicker(t *testing.T) {
	t.Parallel()
	realBinary(t)
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			places := 0
			for _, e := range p.Endpoints {
				places += e.MaxConcurrency
			}
			each := 2 // of endpoints that come later
			if len(p.Endpoints) > 0 {
				each = places / len(p.Endpoints)
			}
			picker := startReal(t, eppreal.Config{
				Places: each, MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, TTL: p.TTL, Eviction: p.Eviction,
			})
			s := realSubject{realClient(t, picker, llmd.Config{}), t, picker}
			s.SetEndpoints(p.Endpoints)
			return s
		},
		Run:    func(t *testing.T, test func(t *testing.T)) { test(t) },
		Settle: func() { pause(60 * time.Millisecond) },
		Slack:  3 * time.Second,
		Can:    schedulertest.Capabilities{Turns: true, RequestTTL: true, LeastLoaded: true, Eviction: true},
	})
}
