package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Intent is what is known of a request when it is admitted, and all that is
// known of it should its replica die: what it holds and what it has used is
// settled from it. It names things, and holds nothing of what was asked.
type Intent struct {
	Request      string    `json:"id"`
	Tenant       string    `json:"tenant"`
	Project      string    `json:"project,omitempty"`
	Key          string    `json:"key,omitempty"`
	Model        string    `json:"model"`
	Operation    string    `json:"op"`
	Tier         string    `json:"tier,omitempty"`
	Mode         string    `json:"mode,omitempty"` // of billing
	PriceVersion int64     `json:"price,omitempty"`
	Prompt       int64     `json:"prompt"` // tokens, estimated
	StartedAt    time.Time `json:"at"`
	Replica      string    `json:"replica"`
	Chunks       []int64   `json:"chunks,omitempty"` // of wallets that its hold is taken from

	// As of the last checkpoint; nothing before the first.
	Dispatched bool  `json:"-"`
	Input      int64 `json:"-"` // tokens, as the engine counts them; 0 until it says
	Cached     int64 `json:"-"` // of the input
	Output     int64 `json:"-"`
}

// Progress is how far a request has come since it was admitted.
type Progress struct {
	Tenant, Request string
	Dispatched      bool // a model server has it
	Input, Output   int64
	Cached          int64 // of the input
}

// Intents keeps the intents of the requests under way until they are released,
// so that those of a replica that died can be found. It is safe for concurrent
// use.
type Intents interface {
	// Checkpoint notes how far requests have come: at most once a second, with
	// all of the replica's. One that is not kept, or no longer, is passed over.
	Checkpoint(ctx context.Context, p []Progress) error
	// Orphans returns at most so many intents whose replica is gone: of the
	// replicas named, and of processes before this one whose folder it has.
	Orphans(ctx context.Context, dead []string, most int) ([]Intent, error)
	// Forget drops orphans that were settled. Twice is no error.
	Forget(ctx context.Context, settled []Intent) error
}

// encode is the intent as stores keep it.
func (in *Intent) encode() []byte {
	out, err := json.Marshal(in)
	if err != nil { // not reached: times of this era, text and numbers always encode
		panic(err)
	}
	return out
}

func decodeIntent(raw []byte) (in Intent, err error) {
	if err := json.Unmarshal(raw, &in); err != nil {
		return Intent{}, fmt.Errorf("admission: an intent that can't be read: %w", err)
	}
	return in, nil
}

// mark is the progress as stores keep it, without the names.
func (p *Progress) mark() string {
	dispatched := "0"
	if p.Dispatched {
		dispatched = "1"
	}
	mark := dispatched + " " + strconv.FormatInt(p.Input, 10) + " " + strconv.FormatInt(p.Output, 10)
	if p.Cached > 0 {
		mark += " " + strconv.FormatInt(p.Cached, 10)
	}
	return mark
}

// note puts a mark into the intent. One that can't be read says nothing.
func (in *Intent) note(mark string) {
	fields := strings.Fields(mark)
	if len(fields) != 3 && len(fields) != 4 {
		return
	}
	var n [3]int64 // input, output, and what was cached where any was
	for i, field := range fields[1:] {
		var err error
		if n[i], err = strconv.ParseInt(field, 10, 64); err != nil {
			return
		}
	}
	in.Dispatched, in.Input, in.Output, in.Cached = fields[0] == "1", n[0], n[1], n[2]
}
