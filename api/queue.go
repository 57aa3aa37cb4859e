package api

import (
	"net/url"
	"strconv"
	"time"

	"weir/api/inference"
	"weir/gateway"
	"weir/tenants"
)

// Queue shows what waits for capacity. gateway.Gateway is one.
type Queue interface {
	// Waiting lists requests of the caller's project, the oldest first and at
	// most so many; with an id those alone that have it, as ours or as the
	// caller's own. More says that there are others.
	Waiting(p *tenants.Principal, id string, most int) (list []gateway.Waiting, more bool)
}

const (
	defaultWaiting = 20
	maxWaiting     = 100
)

// waitingView is a waiting request as its project sees it. It names no other
// tenant and no model server.
type waitingView struct {
	ID              string   `json:"id"`
	Object          string   `json:"object"`
	ClientRequestID *string  `json:"client_request_id"`
	Model           string   `json:"model"`
	Band            string   `json:"band"`
	Tier            string   `json:"service_tier"`
	CreatedAt       int64    `json:"created_at"`
	Waited          float64  `json:"waited"`        // seconds
	Position        *int     `json:"position"`      // 1 goes next; null: unknown
	Expected        *float64 `json:"expected_wait"` // seconds from now; null: unknown
}

type waitingList struct {
	Object string        `json:"object"`
	Data   []waitingView `json:"data"`
	More   bool          `json:"has_more"`
}

// listQueue shows the waiting requests of the caller's project.
func (s *Server) listQueue(x *exchange) error {
	query := x.Request().URL.Query()
	most, err := limitOf(query, defaultWaiting, maxWaiting)
	if err != nil {
		return err
	}
	list := waitingList{Object: "list", Data: []waitingView{}}
	if s.queue != nil {
		var waiting []gateway.Waiting
		waiting, list.More = s.queue.Waiting(x.principal, query.Get("request"), most)
		for _, w := range waiting {
			list.Data = append(list.Data, viewOfWaiting(w))
		}
	}
	return s.answerJSON(x, list)
}

// limitOf reads ?limit=.
func limitOf(query url.Values, preset, most int) (int, error) {
	text := query.Get("limit")
	if text == "" {
		return preset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, &inference.Problem{
			Code: "invalid_value", Param: "limit", Message: "'limit' must be a whole number from 1 to " + strconv.Itoa(most) + ".",
		}
	}
	return n, nil
}

func viewOfWaiting(w gateway.Waiting) waitingView {
	v := waitingView{
		ID: w.ID, Object: "queued_request", Model: w.Model, Band: w.Band, Tier: string(w.Tier),
		CreatedAt: w.Since.Unix(), Waited: seconds(w.Waited),
	}
	if w.ClientRequestID != "" {
		v.ClientRequestID = &w.ClientRequestID
	}
	if p := w.Position; p != nil {
		place := p.Ahead + 1
		v.Position = &place
		if p.Expected > 0 {
			expected := seconds(p.Expected)
			v.Expected = &expected
		}
	}
	return v
}

// seconds rounds to milliseconds.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
