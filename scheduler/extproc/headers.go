// Package extproc is what a gateway and an Endpoint Picker say to each other
// over Envoy's external processing stream: the names of headers, how they and
// bodies are written and read, how a refusal looks, and the facts that a
// gateway of ours adds for a `weir scheduler`. It knows neither side.
package extproc

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Headers collects the headers of a message. The zero value is ready to use.
type Headers struct {
	list []*corev3.HeaderValue
}

// Add appends a header; an empty value adds nothing. Name must be lower case.
func (h *Headers) Add(name, value string) {
	if value != "" {
		h.list = append(h.list, &corev3.HeaderValue{Key: name, RawValue: []byte(value)})
	}
}

// Map returns what was added, as requests carry it.
func (h *Headers) Map() *corev3.HeaderMap { return &corev3.HeaderMap{Headers: h.list} }

// Mutation returns what was added, as answers carry it.
func (h *Headers) Mutation() *extprocv3.HeaderMutation {
	set := make([]*corev3.HeaderValueOption, len(h.list))
	for i, v := range h.list {
		set[i] = &corev3.HeaderValueOption{Header: v, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
	}
	return &extprocv3.HeaderMutation{SetHeaders: set}
}

// Value returns the header's value wherever the sender put it: Envoy fills
// raw_value alone, older filters value.
func Value(v *corev3.HeaderValue) string {
	if raw := v.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return v.GetValue()
}

// Get returns the first value of a header of a request, "" when there is none.
// Names are compared without case.
func Get(m *corev3.HeaderMap, name string) string {
	for _, v := range m.GetHeaders() {
		if strings.EqualFold(v.GetKey(), name) {
			return Value(v)
		}
	}
	return ""
}

// GetSet returns the last value that a mutation sets for a header: a picker
// echoes the request's own headers, and what it decides comes after or
// replaces them.
func GetSet(m *extprocv3.HeaderMutation, name string) string {
	value := ""
	for _, o := range m.GetSetHeaders() {
		if strings.EqualFold(o.GetHeader().GetKey(), name) {
			value = Value(o.GetHeader())
		}
	}
	return value
}
