package gateway_test

import (
	"net"
	"strings"
	"testing"

	"weir/gateway"
	"weir/scheduler/llmd/eppsim"
)

// deadAddress is one that refuses connections.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestAnEndpointThatRefusesConnectionsIsPassedOverForTheNextThatThePickerNamed(t *testing.T) {
	t.Parallel()
	p, e, dead := startPicker(t, eppsim.Config{Fallbacks: true}), startEngine(t), deadAddress(t)
	p.SetEndpoints([]eppsim.Endpoint{{Address: dead, Max: 1}, {Address: e.host(), Max: 1}})
	r := buildRemote(t, llmdPool(`{id: dead, url: "http://`+dead+`"}, `+listed(e), "", p))
	text, err := r.ask(t, "req_1", "")
	if err != nil || !strings.HasSuffix(text, doneEvent) {
		t.Fatalf("%v, the caller saw %s", err, text)
	}
	until(t, "the picker learns of the end", func() bool { all := p.Exchanges(); return len(all) == 1 && all[0].Complete })
	if x := p.Exchanges()[0]; x.Response[":status"] != "200" || p.Live() != 0 {
		t.Errorf("the picker was told %v, and counts %d places", x.Response, p.Live())
	}
}

func TestAPickerIsToldOfAnEndpointThatRefusesConnections(t *testing.T) {
	t.Parallel()
	p, dead := startPicker(t, eppsim.Config{}), deadAddress(t)
	p.SetEndpoints([]eppsim.Endpoint{{Address: dead, Max: 1}})
	r := buildRemote(t, llmdPool(`{id: dead, url: "http://`+dead+`"}`, "", p))
	text, err := r.ask(t, "req_1", "")
	if cause(err) != gateway.ConnectFailed || text != "" {
		t.Errorf("%v, the caller saw %q", err, text)
	}
	until(t, "its place is free", func() bool { return p.Live() == 0 && len(p.Exchanges()) > 0 && p.Exchanges()[0].Complete })
	if got := p.Exchanges()[0].Response[":status"]; got != "502" {
		t.Errorf("the picker was told the status %q, want the server's fault", got)
	}
	if got := r.ledger.all(); len(got) != 1 || got[0].Usage.Output != 0 {
		t.Errorf("receipts %+v", got)
	}
}
