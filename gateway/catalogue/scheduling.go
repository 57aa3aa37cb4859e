package catalogue

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

// Scheduling is how a pool queues and places requests: either bounds on Weir's
// own policies, or a document in llm-d's form that sets everything, or where a
// scheduler is that other replicas share. Bounds are then those of what stands
// in for it, and of a `weir scheduler` itself.
type Scheduling struct {
	Kind string `yaml:"kind,omitempty"` // embedded (default), llm-d, weir, llm-d-http

	MaxConcurrency int           `yaml:"max_concurrency,omitempty"` // per endpoint that names none; 64
	MaxQueued      int           `yaml:"max_queued,omitempty"`      // of the pool; 10000
	MaxBandQueued  int           `yaml:"max_band_queued,omitempty"` // 5000
	MaxFlowQueued  int           `yaml:"max_flow_queued,omitempty"` // 1000
	QueueTTL       time.Duration `yaml:"queue_ttl,omitempty"`       // 60s

	Shared `yaml:",inline"`

	// ConfigFile names a file with the document. It is for people: Include puts
	// the document in its place, and nothing else is stored.
	ConfigFile string `yaml:"config_file,omitempty"`
	// Picker is an EndpointPickerConfig, as JSON with sorted members so that
	// what means the same is the same; "" without one.
	Picker string `yaml:"-"`
}

// bounds is Scheduling without its methods.
type bounds Scheduling

// UnmarshalYAML reads either form. What is wrong is told with its line.
func (s *Scheduling) UnmarshalYAML(n *yaml.Node) error {
	if !isPicker(n) {
		return s.readBounds(n)
	}
	if _, err := pickerconfig.ParseNode(n); err != nil {
		return &yaml.TypeError{Errors: strings.Split(err.Error(), "\n")}
	}
	var plain any
	if err := n.Decode(&plain); err != nil {
		return err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: scheduler: %v", n.Line, err)}}
	}
	*s = Scheduling{Picker: string(text)}
	return nil
}

// isPicker reports whether a mapping is a document and not bounds.
func isPicker(n *yaml.Node) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch n.Content[i].Value {
		case "apiVersion":
			return true
		case "kind":
			if n.Content[i+1].Value == pickerconfig.Kind {
				return true
			}
		}
	}
	return false
}

func (s *Scheduling) readBounds(n *yaml.Node) error {
	known := []string{
		"max_concurrency", "max_queued", "max_band_queued", "max_flow_queued", "queue_ttl", "config_file", "kind",
		"epp", "tls", "insecure_plaintext", "objectives", "objectives_url", "metrics_url", "allowed_destinations", "scheme",
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key := n.Content[i]; !slices.Contains(known, key.Value) {
			return &yaml.TypeError{Errors: []string{fmt.Sprintf(
				"line %d: scheduler has no field %s: write %s, or a document with apiVersion and kind: %s",
				key.Line, key.Value, strings.Join(known, ", "), pickerconfig.Kind)}}
		}
	}
	if err := n.Decode((*bounds)(s)); err != nil {
		return err
	}
	if s.Kind == KindEmbedded {
		s.Kind = ""
	}
	return nil
}

// hasBounds reports whether any of Weir's own policies is bounded.
func (s Scheduling) hasBounds() bool {
	return s.MaxConcurrency != 0 || s.MaxQueued != 0 || s.MaxBandQueued != 0 || s.MaxFlowQueued != 0 || s.QueueTTL != 0
}

// MarshalYAML writes the form that was read.
func (s Scheduling) MarshalYAML() (any, error) {
	if s.Picker == "" {
		return bounds(s), nil
	}
	var plain any
	err := yaml.Unmarshal([]byte(s.Picker), &plain)
	return plain, err
}

// Include puts the documents in place that pools name by config_file. The read
// function says where such names lead.
func (d *Document) Include(read func(name string) ([]byte, error)) (warnings []string, err error) {
	for i := range d.Pools {
		s := &d.Pools[i].Scheduler
		if s.ConfigFile == "" {
			continue
		}
		raw, err := read(s.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", d.Pools[i].Name, err)
		}
		parsed, err := pickerconfig.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %s: %w", d.Pools[i].Name, s.ConfigFile, err)
		}
		for _, w := range parsed.Warnings {
			warnings = append(warnings, s.ConfigFile+": "+w)
		}
		if err := yaml.Unmarshal(raw, s); err != nil {
			return nil, fmt.Errorf("pool %s: %s: %w", d.Pools[i].Name, s.ConfigFile, err)
		}
	}
	return warnings, nil
}

// pickerWarnings are those of the documents inside a catalogue, with its lines.
func pickerWarnings(raw []byte) (warnings []string) {
	var doc struct {
		Pools []struct {
			Name      string    `yaml:"name"`
			Scheduler yaml.Node `yaml:"scheduler"`
		} `yaml:"pools"`
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil // Parse says what is wrong
	}
	for _, p := range doc.Pools {
		if !isPicker(&p.Scheduler) {
			continue
		}
		if parsed, err := pickerconfig.ParseNode(&p.Scheduler); err == nil {
			for _, w := range parsed.Warnings {
				warnings = append(warnings, "pool "+p.Name+": "+w)
			}
		}
	}
	return warnings
}

// document is the parsed Picker; nil without one.
func (s Scheduling) document() (*pickerconfig.Document, error) {
	if s.Picker == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	return pickerconfig.Parse([]byte(s.Picker))
}

func (s Scheduling) validate(c *complaints, pool string, bands []Band) {
	if min(s.MaxConcurrency, s.MaxQueued, s.MaxBandQueued, s.MaxFlowQueued, int(s.QueueTTL)) < 0 {
		c.add("pool %s: scheduler: limits can't be negative", pool)
	}
	if s.ConfigFile != "" {
		c.add("pool %s: scheduler: config_file %s was not read", pool, s.ConfigFile)
		if s.hasBounds() {
			c.add("pool %s: scheduler: config_file sets everything: leave the limits out", pool)
		}
	}
	doc, err := s.document()
	switch {
	case err != nil:
		c.add("pool %s: scheduler: %w", pool, err)
	case doc != nil && len(doc.Priorities) > 0:
		samePriorities(c, pool, bands, doc.Priorities)
	}
}

// samePriorities checks that a document which lists bands lists those of the
// catalogue: a request in a band that the other one doesn't know would be
// treated as nobody wrote down.
func samePriorities(c *complaints, pool string, bands []Band, listed []int) {
	for _, p := range listed {
		if !slices.ContainsFunc(bands, func(b Band) bool { return b.Priority == p }) {
			c.add("pool %s: scheduler: priorityBands has the priority %d, which no band under bands: has", pool, p)
		}
	}
	for _, b := range bands {
		if !slices.Contains(listed, b.Priority) {
			c.add("pool %s: scheduler: priorityBands lacks the priority %d of the band %s", pool, b.Priority, b.Name)
		}
	}
}

// Scheduler is what a pool's scheduler is to be told.
type Scheduler struct {
	Config            scheduler.Config
	PropagatePriority bool // engines are to be told a request's priority

	// Objectives are the InferenceObjectives of a shared scheduler's bands, by
	// priority.
	Objectives map[int]string

	from source
}

// source is what a Scheduler was made from, in words.
type source struct{ settings, bands string }

func sourceOf(s Scheduling, bands []Band) source {
	settings, err := yaml.Marshal(s)
	if err != nil { // never: it was read from such a text
		settings = fmt.Append(nil, s)
	}
	return source{string(settings), fmt.Sprint(bands)}
}

// Same reports whether two were made from the same settings and bands.
func (s Scheduler) Same(other Scheduler) bool { return s.from == other.from }

// scheduler joins the settings with the bands of the catalogue, so that
// policies which go by rank know all of them.
func (s Scheduling) scheduler(bands []Band) Scheduler {
	from := sourceOf(s, bands)
	doc, err := s.document()
	if doc == nil || err != nil { // what is stored was read before: there is no error
		return Scheduler{from: from, Objectives: s.objectives(bands), Config: scheduler.Config{
			MaxConcurrency: s.MaxConcurrency, MaxQueued: s.MaxQueued,
			MaxBandQueued: s.MaxBandQueued, MaxFlowQueued: s.MaxFlowQueued, TTL: s.QueueTTL,
		}}
	}
	c := &doc.Config
	for _, b := range bands {
		if slices.Contains(doc.Priorities, b.Priority) {
			continue
		}
		config := c.DefaultBand
		if b.Priority < 0 && c.DefaultNegativeBand != nil {
			config = *c.DefaultNegativeBand
		}
		config.Priority = b.Priority
		c.Bands = append(c.Bands, config)
	}
	return Scheduler{Config: *c, PropagatePriority: doc.PropagatePriority, from: from}
}
