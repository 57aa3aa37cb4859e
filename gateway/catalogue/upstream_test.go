package catalogue_test

import (
	"strings"
	"testing"
)

func TestAModelSaysHowItsEnginesAreAsked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, model, complaint string }{
		{"nothing is as a chat", "operations: [chat]", ""},
		{"a chat, in words", "operations: [chat], upstream: chat", ""},
		{"at an endpoint of their own", "operations: [chat, completions], upstream: responses", ""},
		{"a model that doesn't chat has no responses", "operations: [embeddings], upstream: responses", "operations lack chat"},
		{"another word is none", "operations: [chat], upstream: native", `upstream: "native"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := parse(t, "apiVersion: weir/v1\npools: [{name: gpu}]\nmodels: [{name: m, routes: [{pool: gpu}], "+tt.model+"}]\n").Validate()
			if (err != nil) != (tt.complaint != "") || err != nil && !strings.Contains(err.Error(), tt.complaint) {
				t.Errorf("complaints: %v, want %q", err, tt.complaint)
			}
		})
	}
}
