package inference

import (
	"maps"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"weir/gateway"
)

// The published description and the policy table are two sides of one promise.
func TestTheDescriptionListsThePolicy(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	schemas := doc.Components.Schemas
	for op, name := range map[gateway.Operation]string{chat: "ChatRequest", completions: "CompletionRequest", embeddings: "EmbeddingRequest"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var taken, refusals []string
			for name, r := range policies()[op] {
				if r.action == refused {
					refusals = append(refusals, name)
				} else {
					taken = append(taken, name)
				}
			}
			described := slices.Collect(maps.Keys(schemas[name].Value.Properties))
			for _, part := range schemas[name].Value.AllOf {
				described = slices.AppendSeq(described, maps.Keys(part.Value.Properties))
			}
			described = slices.DeleteFunc(described, func(s string) bool { return s == "" })
			undone := append(refusalsOf(t, schemas["Refused"].Value), refusalsOf(t, schemas[name].Value)...)
			for what, lists := range map[string][2][]string{"taken": {taken, described}, "refused": {refusals, undone}} {
				slices.Sort(lists[0])
				slices.Sort(lists[1])
				if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
					t.Errorf("%s: (-policy +description)\n%s", what, diff)
				}
			}
		})
	}
}

func refusalsOf(t *testing.T, s *openapi3.Schema) (names []string) {
	t.Helper()
	list, ok := s.Extensions["x-weir-refused"].([]any)
	for _, name := range list {
		word, isString := name.(string)
		ok = ok && isString
		names = append(names, word)
	}
	if s.Extensions["x-weir-refused"] != nil && !ok {
		t.Fatalf("x-weir-refused is no list of names: %v", s.Extensions)
	}
	return names
}
