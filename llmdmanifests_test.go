package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"weir/gateway/catalogue"
	"weir/scheduler/pickerconfig"
)

// manifest reads a file of deploy/llm-d.
func manifest(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("deploy", "llm-d", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// ourBands are those of the playground's catalogue.
func ourBands(t *testing.T) []catalogue.Band {
	t.Helper()
	doc, _, err := catalogue.Parse([]byte("apiVersion: weir/v1\n" + defaultBands))
	if err != nil {
		t.Fatal(err)
	}
	return doc.Bands
}

func TestLLMDKnowsEveryBandByItsObjective(t *testing.T) {
	t.Parallel()
	type objective struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       struct {
			Priority int
			PoolRef  struct{ Group, Kind, Name string } `yaml:"poolRef"`
		}
	}
	var got []catalogue.Band
	for dec := yaml.NewDecoder(bytes.NewReader(manifest(t, "objectives.yaml"))); ; {
		var o objective
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if o.APIVersion != "llm-d.ai/v1alpha2" || o.Kind != "InferenceObjective" || o.Spec.PoolRef.Group != "inference.networking.k8s.io" || o.Spec.PoolRef.Name != "weir" {
			t.Errorf("%+v", o)
		}
		got = append(got, catalogue.Band{Name: o.Metadata.Name, Priority: o.Spec.Priority})
	}
	if d := cmp.Diff(ourBands(t), got); d != "" {
		t.Errorf("bands - and objectives +:\n%s", d)
	}
}

func TestLLMDsConfigurationsHaveOurBands(t *testing.T) {
	t.Parallel()
	var want []int
	for _, b := range ourBands(t) {
		want = append(want, b.Priority)
	}
	for name, warnings := range map[string]int{"epp-config.v1.yaml": 0, "epp-config.v1alpha1.yaml": 1} {
		doc, err := pickerconfig.Parse(manifest(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, slices.Sorted(slices.Values(doc.Priorities)), cmp.Transformer("sorted", func(p []int) []int { return slices.Sorted(slices.Values(p)) })); d != "" {
			t.Errorf("%s: bands - and priorityBands +:\n%s", name, d)
		}
		if len(doc.Warnings) != warnings {
			t.Errorf("%s: %q", name, doc.Warnings)
		}
	}
}

func TestTheCatalogueForLLMDIsOne(t *testing.T) {
	t.Parallel()
	doc, warnings, err := catalogue.Parse(manifest(t, "catalogue.yaml"))
	if err == nil {
		err = doc.Validate()
	}
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	if d := cmp.Diff(ourBands(t), doc.Bands); d != "" {
		t.Errorf("our bands - and its +:\n%s", d)
	}
	var pool struct{ Metadata struct{ Name string } }
	if err := yaml.Unmarshal(manifest(t, "inferencepool.yaml"), &pool); err != nil || pool.Metadata.Name != doc.Pools[0].Name {
		t.Errorf("the InferencePool is %q, the catalogue's pool %q (%v)", pool.Metadata.Name, doc.Pools[0].Name, err)
	}
}
