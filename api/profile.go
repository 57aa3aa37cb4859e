package api

import (
	"net/http"
	"net/http/pprof" // it also registers with a mux that we never serve
)

// profiles serves the runtime's profiles under /ops/v1/pprof/, for
// `go tool pprof`: profile (?seconds=) and trace, and the named ones.
func profiles(mux *http.ServeMux) {
	const at = "GET /ops/v1/pprof/"
	mux.HandleFunc(at+"profile", pprof.Profile)
	mux.HandleFunc(at+"trace", pprof.Trace)
	for _, name := range [...]string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"} {
		mux.Handle(at+name, pprof.Handler(name))
	}
}
