package epp_test

import (
	"fmt"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"pgregory.net/rapid"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/extproc"
)

// Whatever comes on a stream, and however it ends, nothing of it is left: serve
// looks for leases, waiting requests and streams when the test is over.
func TestWhateverIsSaidNothingIsLeft(t *testing.T) {
	t.Parallel()
	s := serve(t, 2, scheduler.Config{}, epp.Config{MaxBody: 1000})
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		var md []string
		if rapid.Bool().Draw(r, "gateway") {
			md = []string{extproc.GatewayKey, "1"}
		}
		p := s.open(t, md...)
		n++
		id := fmt.Sprint(n)
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 50)
		for _, what := range rapid.SliceOfN(rapid.IntRange(0, 8), 0, 12).Draw(r, "messages") {
			switch what {
			case 0, 1:
				p.chat(id)
			case 2:
				p.begin(hint("10.0.0.1"), "x-request-id", id, "x-weir-facts", "1", "x-weir-band", rapid.StringMatching(`[0-9x-]{0,4}`).Draw(r, "band"))
			case 3:
				p.send(bodyPiece(bytes.Draw(r, "body"), rapid.Bool().Draw(r, "last")))
			case 4:
				p.responseHeaders(":status", rapid.SampledFrom([]string{"200", "500", "x"}).Draw(r, "status"))
			case 5:
				p.responseBody(string(bytes.Draw(r, "piece")), rapid.Bool().Draw(r, "end"))
			case 6:
				p.outcome(scheduler.Outcome{Result: scheduler.Completed})
			case 7:
				p.send(&extprocv3.ProcessingRequest{})
			case 8:
				p.send(bare())
			}
		}
		if rapid.Bool().Draw(r, "cut") {
			p.cancel()
		} else {
			_ = p.end()
		}
	})
	s.rests(t, 0, 0)
	eventually(t, "no exchange is left", func() bool { return s.Live() == 0 })
}
