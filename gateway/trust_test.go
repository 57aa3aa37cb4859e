package gateway_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/gateway"
	"weir/scheduler"
	"weir/scheduler/enginesim"
)

// An engine behind TLS whose certificate is for a name, while the endpoint's
// URL has an address: as with endpoints that were found by DNS.
func TestEndpointIsTrustedByTheNameOnItsCertificate(t *testing.T) {
	t.Parallel()
	sim := enginesim.New(enginesim.Config{ZeroLatency: true, Models: []string{"sim"}})
	t.Cleanup(sim.Close)
	server := httptest.NewUnstartedServer(sim)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for name, tt := range map[string]struct {
		serverName string
		trusted    bool
	}{
		"the name on the certificate": {"example.com", true},
		"another name":                {"engine.invalid", false},
		"the address, which it has":   {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelf(t, fmt.Sprintf(`{name: main, ca_file: %q, endpoints: [{id: a, url: "https://127.0.0.1%s", server_name: %q}]}`, ca, port, tt.serverName))
			r := newReplica(t, s)
			if err := r.fleet.Probe(t.Context(), "main", "a"); (err == nil) != tt.trusted {
				t.Errorf("probe: %v", err)
			}
			if tt.trusted {
				until(t, "it is healthy", func() bool { return r.fleet.Pools()["main"].State.Endpoints[0].Health == scheduler.Healthy })
			}
			err := r.chat(t.Context(), "req_1", 1, &caller{})
			if (err == nil) != tt.trusted {
				t.Errorf("chat: %v", err)
			}
			if failure, ok := errors.AsType[*gateway.Error](err); ok && failure.Cause != gateway.ConnectFailed && failure.Cause != gateway.UpstreamReset {
				t.Errorf("the cause is %v", failure.Cause)
			}
		})
	}
}
