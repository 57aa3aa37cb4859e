package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

func validate(t *testing.T, schema *openapi3.Schema, body []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if err := schema.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
		t.Errorf("%s: %v", body, err)
	}
}

func TestRoutesAndDescriptionAgree(t *testing.T) {
	t.Parallel()
	var served, described []string
	for _, rt := range (&Server{}).routes() {
		served = append(served, rt.method+" "+strings.NewReplacer("*", "{model}", ":id", "{id}", ":item", "{item}").Replace(rt.path))
	}
	for path, item := range description(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if !slices.Equal(served, described) {
		t.Errorf("served: %v\ndescribed: %v", served, described)
	}
}

func TestAnswersAreAsDescribed(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	doc := description(t)
	tests := []struct{ method, path, item, body string }{
		{http.MethodPost, "/v1/chat/completions", "/v1/chat/completions", helloBody},
		{http.MethodPost, "/v1/completions", "/v1/completions", `{"model":"sim-chat","prompt":"x"}`},
		{http.MethodPost, "/v1/embeddings", "/v1/embeddings", `{"model":"sim-embed","input":"x"}`},
		{http.MethodGet, "/v1/models", "/v1/models", ""},
		{http.MethodGet, "/v1/models/org/big", "/v1/models/{model}", ""},
		{http.MethodPost, "/v1/chat/completions", "/v1/chat/completions", `{}`},
		{http.MethodPost, "/v1/embeddings", "/v1/embeddings", `{"model":"sim-embed","input":7}`},
		{http.MethodGet, "/v1/queue", "/v1/queue", ""},
		{http.MethodGet, "/v1/queue?limit=0", "/v1/queue", ""},
		{http.MethodGet, "/v1/models/none", "/v1/models/{model}", ""},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path+" "+tt.body, func(t *testing.T) {
			t.Parallel()
			r := h.send(t, tt.method, tt.path, strings.NewReader(tt.body))
			op := doc.Paths.Value(tt.item).GetOperation(tt.method)
			response := op.Responses.Status(r.status)
			if response == nil {
				response = op.Responses.Default()
			}
			validate(t, response.Value.Content.Get("application/json").Schema.Value, []byte(r.body))
			if tt.body != "" && r.status == http.StatusOK {
				validate(t, op.RequestBody.Value.Content.Get("application/json").Schema.Value, []byte(tt.body))
			}
		})
	}
}
