package catalogue

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"

	"go.yaml.in/yaml/v3"

	"weir/billing"
	"weir/tenants"
)

// Versions of the document. The old one loads for one release, with a warning.
const (
	Version    = "weir/v1"
	oldVersion = "weir/v1alpha1"
)

// Document is the catalogue as an operator writes it.
type Document struct {
	APIVersion string                  `yaml:"apiVersion"`
	Bands      []Band                  `yaml:"bands,omitempty"`
	Plans      map[string]tenants.Plan `yaml:"plans,omitempty"`
	Pools      []Pool                  `yaml:"pools,omitempty"`
	Models     []Model                 `yaml:"models,omitempty"`
	Prices     []billing.PriceSpec     `yaml:"prices,omitempty"`
}

// Parse reads a document. An unknown key is an error that names its line.
// Whether the parts fit together is Validate's question, asked once the
// document is merged with what is already there.
func Parse(raw []byte) (doc *Document, warnings []string, err error) {
	doc = &Document{}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(doc); errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the catalogue is empty")
	} else if err != nil {
		return nil, nil, fmt.Errorf("read catalogue: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the catalogue must be one YAML document")
	}
	switch doc.APIVersion {
	case Version:
	case oldVersion:
		warnings = append(warnings, fmt.Sprintf("apiVersion %s is old: write %s; the next release refuses it", oldVersion, Version))
	default:
		return nil, nil, fmt.Errorf("apiVersion is %q: write %s", doc.APIVersion, Version)
	}
	doc.APIVersion = Version
	doc.complete()
	return doc, append(warnings, pickerWarnings(raw)...), nil
}

// complete fills in what follows from the rest, so that documents that mean
// the same are the same.
func (d *Document) complete() {
	for i := range d.Models {
		m := &d.Models[i]
		m.EngineModel = cmp.Or(m.EngineModel, m.Name)
		for j := range m.Routes {
			if r := &m.Routes[j]; r.Canary == 0 && !r.Overflow {
				r.Weight = cmp.Or(r.Weight, 1)
			}
		}
	}
	for i := range d.Pools {
		for j := range d.Pools[i].Endpoints {
			e := &d.Pools[i].Endpoints[j]
			e.Engine = cmp.Or(e.Engine, "vllm")
			if u, err := url.Parse(e.URL); err == nil {
				e.ID = cmp.Or(e.ID, u.Host)
			}
		}
		slices.SortFunc(d.Pools[i].Endpoints, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
		d.Pools[i].Discovery.complete()
	}
	for name, p := range d.Plans {
		p.Name = name
		p.Fairness = cmp.Or(p.Fairness, tenants.FairnessTenant)
		p.Weight = cmp.Or(p.Weight, 1)
		d.Plans[name] = p
	}
}

// merge lays doc over d: what doc names replaces what d has under that name; a
// model that doesn't say when it was created keeps the time that d has.
// Nor does an endpoint come back from a drain that doc doesn't mention.
// With prune, what doc doesn't name is gone; prices stay, because receipts
// refer to them.
func (d *Document) merge(doc *Document, prune bool) *Document {
	known, drained := d.Models, d.Pools
	if prune {
		d = &Document{Prices: d.Prices}
	}
	merged := &Document{
		APIVersion: Version,
		Bands:      overlay(d.Bands, doc.Bands, func(b Band) string { return b.Name }),
		Pools:      overlay(d.Pools, doc.Pools, func(p Pool) string { return p.Name }),
		Models:     overlay(d.Models, doc.Models, func(m Model) string { return m.Name }),
		Prices:     overlay(d.Prices, doc.Prices, func(p billing.PriceSpec) string { return p.Model }),
		Plans:      map[string]tenants.Plan{},
	}
	keepCreated(known, merged.Models)
	keepDrained(drained, merged.Pools)
	for _, plans := range []map[string]tenants.Plan{d.Plans, doc.Plans} {
		maps.Copy(merged.Plans, plans)
	}
	return merged
}

func keepCreated(known, models []Model) {
	created := make(map[string]int64, len(known))
	for _, m := range known {
		created[m.Name] = m.Created
	}
	for i := range models {
		models[i].Created = cmp.Or(models[i].Created, created[models[i].Name])
	}
}

// overlay keeps the old ones that no new one replaces, then the new ones.
func overlay[T any](old, fresh []T, name func(T) string) []T {
	replaced := make(map[string]bool, len(fresh))
	for _, f := range fresh {
		replaced[name(f)] = true
	}
	var all []T
	for _, o := range old {
		if !replaced[name(o)] {
			all = append(all, o)
		}
	}
	return append(all, fresh...)
}
