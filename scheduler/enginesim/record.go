package enginesim

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
)

const keptBody = 64 << 10

// Stats counts what an engine has done since it started, in sequences and
// tokens. A choice is a sequence.
type Stats struct {
	Requests        int     `json:"requests"` // calls for an answer, refused ones too
	Running         int     `json:"running"`
	Waiting         int     `json:"waiting"`
	KVUsage         float64 `json:"kv_usage"` // 0 to 1
	Finished        int     `json:"finished"`
	Aborted         int     `json:"aborted"` // the caller left, or a fault cut the answer
	PromptTokens    int     `json:"prompt_tokens"`
	GeneratedTokens int     `json:"generated_tokens"` // made, whether or not anybody read them
	PrefixQueries   int     `json:"prefix_queries"`   // tokens looked up in the prefix cache
	PrefixHits      int     `json:"prefix_hits"`      // tokens found there
	Offered         int     `json:"offered"`          // prompts that were computed for other servers
	Fetched         int     `json:"fetched"`          // prompts that others computed for this one
	Foreign         int     `json:"foreign"`          // of them refused, because the other one was of another revision
}

func (s *Stats) add(o *Stats) {
	s.Running, s.Waiting, s.KVUsage = s.Running+o.Running, s.Waiting+o.Waiting, s.KVUsage+o.KVUsage
	s.Finished, s.Aborted = s.Finished+o.Finished, s.Aborted+o.Aborted
	s.PromptTokens, s.GeneratedTokens = s.PromptTokens+o.PromptTokens, s.GeneratedTokens+o.GeneratedTokens
	s.PrefixQueries, s.PrefixHits = s.PrefixQueries+o.PrefixQueries, s.PrefixHits+o.PrefixHits
}

// Stats returns the counts of this moment.
func (e *Engine) Stats() Stats {
	var s Stats
	for _, m := range e.ranks {
		running, waiting, used := m.load()
		one := m.counts()
		one.Running, one.Waiting, one.KVUsage = running, waiting, used/float64(len(e.ranks))
		s.add(&one)
	}
	s.Requests = e.log.count()
	s.Offered, s.Fetched, s.Foreign = int(e.offers.Load()), int(e.fetches.Load()), int(e.foreign.Load())
	return s
}

// Request is what the engine was sent and what it did.
type Request struct {
	Path      string      `json:"path"`
	Header    http.Header `json:"header"`
	Body      []byte      `json:"-"` // at most the first 64 KiB
	Text      string      `json:"body"`
	Generated int         `json:"generated_tokens"`
	Outcome   string      `json:"outcome"` // "" while it runs, then completed, aborted, refused or the fault
}

// requestLog keeps the last requests.
type requestLog struct {
	mu    sync.Mutex
	keep  int
	total int
	last  []*Request
}

func (l *requestLog) add(r *http.Request, body []byte) *Request {
	rec := &Request{Path: r.URL.Path, Header: r.Header}
	if l.keep > 0 {
		rec.Body = body
		if len(body) > keptBody {
			rec.Body = slices.Clone(body[:keptBody])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if l.keep > 0 {
		if len(l.last) == l.keep {
			l.last = slices.Delete(l.last, 0, 1)
		}
		l.last = append(l.last, rec)
	}
	return rec
}

func (l *requestLog) end(rec *Request, outcome string, generated int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec.Outcome, rec.Generated = outcome, generated
}

func (l *requestLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Requests returns the last calls for an answer, oldest first, so that a test
// can see what reached the engine.
func (e *Engine) Requests() []Request {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	out := make([]Request, 0, len(e.log.last))
	for _, r := range e.log.last {
		c := *r
		c.Header = r.Header.Clone()
		c.Text = string(r.Body)
		out = append(out, c)
	}
	return out
}

// adminRequests shows Stats and Requests to a test in another process.
func (e *Engine) adminRequests(w http.ResponseWriter, r *http.Request) {
	out := struct {
		Stats    Stats     `json:"stats"`
		Requests []Request `json:"requests,omitempty"`
	}{Stats: e.Stats()}
	if n, err := strconv.Atoi(r.URL.Query().Get("last")); err == nil && n > 0 {
		all := e.Requests()
		out.Requests = all[max(len(all)-n, 0):]
	}
	writeJSON(w, http.StatusOK, out)
}
