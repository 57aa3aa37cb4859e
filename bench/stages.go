package main

import (
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// stage is a part of the gateway's work. CPU belongs to the stage that called
// it: the function nearest to where the CPU was spent whose name begins with
// one of the prefixes decides, and what library code does (JSON, maps, memory)
// goes to whoever asked for it.
type stage struct {
	name     string
	prefixes []string
}

// others is what no stage has asked for.
const others = "Go's scheduler, poller and collector"

func stages() []stage {
	return []stage{
		{"HTTP server: read the request, write the answer", []string{
			"net/http.(*conn).", "net/http.(*response).", "net/http.(*connReader).", "net/http.checkConnErrorWriter.", "net/http.(*timeoutHandler).",
			"net/http.(*chunkWriter).", "net/http.(*Server).", "net/http.readRequest", "net/http.(*http2serverConn).",
		}},
		{"HTTP client: connection, request, answer", []string{"weir/gateway/upstream."}},
		{"edge: key, body, parsing, headers", []string{"weir/api.", "weir/api/", "weir/tenants.", "github.com/labstack/echo/"}},
		{"resolve and admit", []string{"weir/gateway.(*exchange).resolve", "weir/gateway.(*exchange).admit", "weir/gateway.(*router).", "weir/gateway/admission.", "github.com/redis/"}},
		{"schedule, and end the lease", []string{"weir/gateway.(*exchange).schedule", "weir/gateway.(*waiters).", "weir/gateway.(*running).", "weir/scheduler."}},
		{"build the engine's request", []string{"weir/gateway.engineBody", "weir/gateway.(*exchange).post", "weir/gateway.(*engines)."}},
		{"read the answer, check it, pass it on", []string{"weir/gateway.(*exchange).relay", "weir/gateway.(*exchange).document", "weir/gateway.(*rewriter).", "weir/gateway.(*splitter).", "weir/gateway.(*template).", "weir/gateway.(*exchange).event", "weir/gateway.(*meter)."}},
		{"settle: the receipt, shared over the batch", []string{"weir/billing.", "weir/gateway.(*exchange).store", "github.com/jackc/"}},
		{"the log's line", []string{"weir/gateway.(*exchange).report", "log/slog."}},
		{"metrics", []string{"weir/gateway.(*epp).", "weir/gateway.(*metrics).", "github.com/prometheus/"}},
		{"time limits and contexts", []string{"weir/gateway.(*watch).", "weir/gateway.newWatch", "context."}},
		{"the rest of the exchange", []string{"weir/gateway."}},
		{"everything else of Weir", []string{"weir/", "main."}},
	}
}

// stageOf finds the stage of a stack, its leaf first.
func stageOf(all []stage, stack []string) string {
	for _, function := range stack {
		for _, s := range all {
			if slices.ContainsFunc(s.prefixes, func(p string) bool { return strings.HasPrefix(function, p) }) {
				return s.name
			}
		}
	}
	return others
}

// attribute sums a CPU profile by stage: the part of all, from 0 to 1.
func attribute(p *profile.Profile) map[string]float64 {
	all, parts := stages(), map[string]float64{}
	var total float64
	for _, s := range p.Sample {
		var stack []string
		for _, l := range s.Location {
			for _, line := range l.Line { // what was inlined stands first
				stack = append(stack, line.Function.Name)
			}
		}
		spent := float64(s.Value[len(s.Value)-1])
		parts[stageOf(all, stack)] += spent
		total += spent
	}
	for name := range parts {
		parts[name] /= max(total, 1)
	}
	return parts
}
