// Package pickerconfig reads llm-d's EndpointPickerConfig and says what it
// means to Weir's own scheduler. Type names of plugins, parameters and defaults
// are llm-d's; what Weir adds has names that begin with "weir". It is strict:
// what it doesn't know is an error that lists what it does.
package pickerconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/scheduler"
)

// Kind is the kind of the documents that this package reads.
const Kind = "EndpointPickerConfig"

const (
	version    = "llm-d.ai/v1"
	oldVersion = "llm-d.ai/v1alpha1"
	oldGroup   = "inference.networking.x-k8s.io/v1alpha1"
)

// maxDocument bounds a document, in bytes.
const maxDocument = 1 << 20

// forever is a time limit for requests that may wait until they are served.
const forever = 10 * 365 * 24 * time.Hour

// unbounded stands for a count that llm-d doesn't bound.
const unbounded = 1 << 30

// Document is what an EndpointPickerConfig means.
type Document struct {
	Config scheduler.Config
	// Priorities are those of flowControl.priorityBands, highest first. Empty:
	// all bands take the default ones.
	Priorities []int
	// PropagatePriority asks that engines be told a request's priority.
	PropagatePriority bool
	// Warnings say what in the document has no effect, or will stop having one.
	Warnings []string
}

// Parse reads a document. The error joins all that is wrong with it, each with
// its line.
func Parse(raw []byte) (*Document, error) {
	if len(raw) > maxDocument {
		return nil, fmt.Errorf("the document has %d bytes: at most %d", len(raw), maxDocument)
	}
	var root yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&root); errors.Is(err, io.EOF) {
		return nil, errors.New("the document is empty")
	} else if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one YAML document, got more")
	}
	return ParseNode(root.Content[0])
}

// ParseNode is Parse for a document that stands inside another: the lines in
// its errors are those of the whole.
func ParseNode(n *yaml.Node) (*Document, error) {
	d := newDocument()
	d.read(at{node: n})
	d.resolve()
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	out := d.result()
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	out.Warnings = d.warnings
	return out, nil
}
