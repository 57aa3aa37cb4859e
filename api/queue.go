package api

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"weir/api/inference"
	"weir/gateway"
	"weir/responses"
	"weir/scheduler"
	"weir/tenants"
)

// Queue shows what waits for capacity. gateway.Gateway is one.
type Queue interface {
	// Waiting lists requests of the caller's project, the oldest first and at
	// most so many; with an id those alone that have it, as ours or as the
	// caller's own. More says that there are others.
	Waiting(p *tenants.Principal, id string, most int) (list []gateway.Waiting, more bool)
}

// Orders shows the background responses that wait until a replica takes them up,
// or that wait at another one. A *responses.Runs is one.
type Orders interface {
	// Waiting lists those of the owner's project, as Queue does.
	Waiting(ctx context.Context, o responses.Owner, id string, most int) ([]responses.Waiting, error)
}

const (
	defaultWaiting = 20
	maxWaiting     = 100
	allOrders      = 1000 // as many as a tenant may have
)

// waitingView is a waiting request as its project sees it. It names no other
// tenant and no model server.
type waitingView struct {
	ID              string   `json:"id"`
	Object          string   `json:"object"`
	ClientRequestID *string  `json:"client_request_id"`
	ResponseID      *string  `json:"response_id"` // of a background response
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
	waiting, more, err := s.waiting(x, query.Get("request"), most)
	if err != nil {
		return err
	}
	list := waitingList{Object: "list", Data: make([]waitingView, 0, len(waiting)), More: more}
	for _, w := range waiting {
		list.Data = append(list.Data, viewOfWaiting(w))
	}
	return s.answerJSON(x, list)
}

// waiting is what waits here, and what was ordered and waits elsewhere. Here is
// looked first: what is taken up meanwhile is then seen once, not never.
func (s *Server) waiting(x *exchange, id string, most int) (list []gateway.Waiting, more bool, err error) {
	if s.queue != nil {
		list, more = s.queue.Waiting(x.principal, id, most)
	}
	if s.orders == nil {
		return list, more, nil
	}
	here := make(map[string]bool)
	for i := range list {
		here[list[i].Response] = true
	}
	enough := most + 1 + len(here)
	if len(x.principal.Models) > 0 {
		enough = allOrders // some of them may not be shown
	}
	ordered, err := s.orders.Waiting(x.Request().Context(), x.owner(), id, enough)
	if err != nil {
		return nil, false, err
	}
	for i := range ordered {
		if w, ok := s.ordered(x.principal, &ordered[i]); ok && !here[w.Response] {
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b gateway.Waiting) int {
		return a.Since.Compare(b.Since)
	})
	if len(list) > most {
		list, more = list[:most], true
	}
	return list, more, nil
}

// ordered is a background response as one of the requests that wait. False: the
// key may not use its model.
func (s *Server) ordered(p *tenants.Principal, o *responses.Waiting) (gateway.Waiting, bool) {
	name := o.Model
	if m, ok := s.catalogue().Lookup(name); ok {
		name = m.Name
	}
	band, tier := p.Band(tenants.TierBackground)
	return gateway.Waiting{
		ID: o.ID, ClientRequestID: cmp.Or(o.ClientID, o.ID), Response: o.ID, Model: name, Band: band, Tier: tier,
		Since: o.CreatedAt, Waited: max(s.now().Sub(o.CreatedAt), 0),
		Position: &scheduler.Position{Ahead: o.Place - 1},
	}, p.MayUse(name)
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
	if w.Response != "" {
		v.ResponseID = &w.Response
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
