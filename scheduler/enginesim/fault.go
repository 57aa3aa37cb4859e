package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxBigLine   = 32 << 20
	maxFaultWait = 10 * time.Minute
)

// fault is what goes wrong with one answer. Counts of events are kept one
// higher than written, so that zero means none.
type fault struct {
	dieAfter   int // close the connection after so many events
	resetAfter int // the same with a TCP reset
	stallAfter int // send nothing more, and keep the connection
	status     int // answer with this status
	retryAfter int // seconds, with status
	firstToken time.Duration
	bigLine    int // bytes in one event

	resetEarly, byteAtATime, splitUTF8, noDone, malformed bool
	usageOnOdd, usageWithChoices, twoTools                bool

	native nativeFault
	quirk  quirk
}

// parseFault reads a list such as "slow-first-token=2s,no-done".
func parseFault(text string) (fault, error) {
	var f fault
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		if err := f.set(name, value); err != nil {
			return fault{}, fmt.Errorf("fault %q: %w", item, err)
		}
	}
	return f, nil
}

func (f *fault) set(name, value string) (err error) {
	switch name {
	case "die-mid-stream":
		f.dieAfter, err = eventCount(value)
	case "reset":
		f.resetAfter, err = eventCount(value)
	case "stall":
		f.stallAfter, err = eventCount(value)
	case "status":
		f.status, err = strconv.Atoi(value)
		if err == nil && (f.status < 400 || f.status > 599) {
			err = fmt.Errorf("want a status from 400 to 599")
		}
	case "retry-after":
		f.retryAfter, err = strconv.Atoi(value)
	case "slow-first-token":
		f.firstToken, err = time.ParseDuration(value)
		f.firstToken = min(f.firstToken, maxFaultWait)
	case "big-line":
		f.bigLine, err = parseSize(value)
	default:
		return f.raise(name)
	}
	return err
}

// raise sets a fault that takes no value.
func (f *fault) raise(name string) error {
	switch name {
	case "reset-before-headers":
		f.resetEarly = true
	case "byte-at-a-time":
		f.byteAtATime = true
	case "split-utf8":
		f.splitUTF8 = true
	case "no-done":
		f.noDone = true
	case "malformed":
		f.malformed = true
	case "usage-on-odd-chunks":
		f.usageOnOdd = true
	case "usage-with-choices":
		f.usageWithChoices = true
	case "two-tools-in-one-chunk":
		f.twoTools = true
	default:
		if f.quirk.raise(name) == nil {
			return nil
		}
		return f.native.raise(name)
	}
	return nil
}

// eventCount reads a number of events, 1 when none is given.
func eventCount(value string) (int, error) {
	if value == "" {
		return 2, nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	return int(n) + 1, err
}

func parseSize(value string) (int, error) {
	unit := 1
	if v, ok := strings.CutSuffix(value, "KiB"); ok {
		value, unit = v, 1<<10
	} else if v, ok := strings.CutSuffix(value, "MiB"); ok {
		value, unit = v, 1<<20
	}
	n, err := strconv.Atoi(value)
	if err == nil && (n < 1 || n > maxBigLine/unit) {
		err = fmt.Errorf("want 1 byte to 32MiB")
	}
	return n * unit, err
}

// faultSwitch holds the fault that coming requests meet.
type faultSwitch struct {
	mu   sync.Mutex
	sick bool
	text string
	now  fault
	left int // requests; negative: until reset
}

func (s *faultSwitch) set(text string, requests int) error {
	f, err := parseFault(text)
	if err != nil {
		return err
	}
	if requests == 0 {
		requests = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.now, s.left = text, f, requests
	return nil
}

// take returns the fault for one request.
func (s *faultSwitch) take() fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.now
	if s.left > 0 {
		if s.left--; s.left == 0 {
			s.now, s.text = fault{}, ""
		}
	}
	return f
}

// SetFault makes the next requests for answers fail as the text says, in the
// form of the x-sim-fault header ("die-mid-stream=3,no-done"); 0 requests means
// until the next SetFault. An empty text ends it.
func (e *Engine) SetFault(text string, requests int) error { return e.faults.set(text, requests) }

// SetHealthy decides what /health and /ping answer: 200 or 503.
func (e *Engine) SetHealthy(healthy bool) {
	e.faults.mu.Lock()
	defer e.faults.mu.Unlock()
	e.faults.sick = !healthy
}

func (e *Engine) healthy() bool {
	e.faults.mu.Lock()
	defer e.faults.mu.Unlock()
	return !e.faults.sick
}

type faultState struct {
	Fault    *string `json:"fault,omitempty"`
	Requests int     `json:"requests"` // that will meet it; 0 is until reset
	Healthy  *bool   `json:"healthy,omitempty"`
}

// adminFaults shows and changes the faults: GET, POST of a faultState, DELETE.
func (e *Engine) adminFaults(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
	case http.MethodDelete:
		e.SetHealthy(true)
		_ = e.SetFault("", 0)
	case http.MethodPost:
		var in faultState
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&in); err != nil {
			badRequest("", "%v", err).write(w)
			return
		}
		if in.Fault != nil {
			if err := e.SetFault(*in.Fault, in.Requests); err != nil {
				badRequest("fault", "%v", err).write(w)
				return
			}
		}
		if in.Healthy != nil {
			e.SetHealthy(*in.Healthy)
		}
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		(&apiError{status: http.StatusMethodNotAllowed, kind: "MethodNotAllowed", message: "Method Not Allowed"}).write(w)
		return
	}
	e.faults.mu.Lock()
	text, healthy := e.faults.text, !e.faults.sick
	out := faultState{Fault: &text, Healthy: &healthy, Requests: max(e.faults.left, 0)}
	e.faults.mu.Unlock()
	writeJSON(w, http.StatusOK, out)
}
