package epp

import (
	"testing"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// One set of headers goes to all destinations: a rank is that of one server.
func TestFallbacksAreThoseWhomTheHeadersSuit(t *testing.T) {
	t.Parallel()
	at := func(id, rank string) scheduler.Target {
		target := scheduler.Target{Endpoint: id, URL: "http://" + id + ".test:8000"}
		if rank != "" {
			target.Headers = [][2]string{{extproc.DataParallelRank, rank}}
		}
		return target
	}
	for name, c := range map[string]struct {
		targets []scheduler.Target
		want    string
	}{
		"without headers all of them":       {[]scheduler.Target{at("a", ""), at("b", "")}, "a.test:8000,b.test:8000"},
		"another rank is another place":     {[]scheduler.Target{at("a", "1"), at("b", "0"), at("c", "1")}, "a.test:8000,c.test:8000"},
		"one without ranks is told of none": {[]scheduler.Target{at("a", "1"), at("b", "")}, "a.test:8000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := routed(c.targets, &extproc.Headers{})
			if err != nil {
				t.Fatal(err)
			}
			got := extproc.GetSet(m.GetRequestHeaders().GetResponse().GetHeaderMutation(), extproc.Destination)
			if got != c.want {
				t.Errorf("it goes to %s, want %s", got, c.want)
			}
		})
	}
}
