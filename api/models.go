package api

import (
	"encoding/json"
	"net/url"

	"weir/gateway"
	"weir/gateway/catalogue"
)

// modelView is a model as callers see it.
type modelView struct {
	ID           string `json:"id"`
	Object       string `json:"object"`
	Created      int64  `json:"created"`
	OwnedBy      string `json:"owned_by"`
	Context      int    `json:"context_length,omitempty"`
	MaxOutput    int    `json:"max_output_tokens,omitempty"`
	ShutdownDate string `json:"shutdown_date,omitempty"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelView `json:"data"`
}

func viewOf(m *catalogue.Model) modelView {
	v := modelView{
		ID: m.Name, Object: "model", Created: m.Created, OwnedBy: m.OwnedBy,
		Context: m.Context, MaxOutput: m.MaxOutput,
	}
	if v.OwnedBy == "" {
		v.OwnedBy = "weir"
	}
	if m.ShutdownDate != nil {
		v.ShutdownDate = m.ShutdownDate.Format("2006-01-02")
	}
	return v
}

// offers reports whether the caller may use the model: its key has it, it is
// still sold, and some pool may serve the caller's tenant and plan.
func offers(snap Catalogue, m *catalogue.Model, x *exchange) bool {
	return x.principal.MayUse(m.Name) && m.Sold(x.receivedAt) && snap.Offers(m, x.principal)
}

// listModels shows the models that the caller may use.
func (s *Server) listModels(x *exchange) error {
	list, snap := modelList{Object: "list", Data: []modelView{}}, s.catalogue()
	for _, m := range snap.Models() {
		if offers(snap, m, x) {
			list.Data = append(list.Data, viewOf(m))
		}
	}
	return s.answerJSON(x, list)
}

// getModel shows one model. Names may have slashes, as they are or escaped. One
// that the caller may not use, or nobody any more, looks like one that doesn't exist.
func (s *Server) getModel(x *exchange) error {
	name, err := url.PathUnescape(x.Param("*"))
	if err != nil {
		return because(unknownURL, err)
	}
	snap := s.catalogue()
	m, ok := snap.Lookup(name)
	if !ok || !offers(snap, m, x) {
		return because(gateway.ModelNotFound, nil)
	}
	return s.answerJSON(x, viewOf(m))
}

func (s *Server) answerJSON(x *exchange, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(body)
}
