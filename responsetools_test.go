package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/tidwall/gjson"
)

// ask posts to a path of the API and returns the answer's status and body.
func ask(t *testing.T, method, url, key, body string) (int, gjson.Result) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, gjson.ParseBytes(raw)
}

// described holds an answer to a schema of the published description.
func described(t *testing.T, schema string, v gjson.Result) {
	t.Helper()
	if err := loadSchemas(t, "api/inference/openapi.yaml")[schema].Value.VisitJSON(v.Value(), openapi3.EnableJSONSchema2020()); err != nil {
		t.Errorf("%s is no %s: %v", v.Raw, schema, err)
	}
}

func TestACountIsWhatTheEngineThenCharges(t *testing.T) {
	t.Parallel()
	in := install(t)
	url, _ := in.serve(t)
	_, one := respond(t, url, in.key, `{"model":"sim-chat","instructions":"be brief","input":"of rivers and weirs","max_output_tokens":16}`)
	body := `{"model":"sim-chat","input":"and then?","previous_response_id":"` + one.Get("id").Str + `","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"tool_choice":"none"`
	status, counted := ask(t, http.MethodPost, url+"/v1/responses/input_tokens", in.key, body+`}`)
	_, two := respond(t, url, in.key, body+`,"max_output_tokens":16}`)
	described(t, "InputTokens", counted)
	if n := counted.Get("input_tokens").Int(); status != http.StatusOK || n == 0 || n != two.Get("usage.input_tokens").Int() {
		t.Errorf("counted %d %s, charged %s", status, counted.Raw, two.Get("usage").Raw)
	}
}

func TestACompactionIsBilledAndGoneOnFrom(t *testing.T) {
	t.Parallel()
	in := install(t)
	url, _ := in.serve(t)
	status, c := ask(t, http.MethodPost, url+"/v1/responses/compact", in.key, `{"model":"sim-chat","input":[{"role":"user","content":"of rivers"},{"role":"assistant","content":"they flow"},{"role":"user","content":"go on"}]}`)
	if status != http.StatusOK || c.Get("output.#.type").Raw != `["message","message","compaction"]` || c.Get("usage.output_tokens").Int() == 0 {
		t.Fatalf("%d %s", status, c.Raw)
	}
	described(t, "Compaction", c)
	if status, got := call(t, http.MethodGet, url+"/v1/responses/"+c.Get("id").Str, in.key); status != http.StatusNotFound {
		t.Errorf("a compaction is kept: %d %s", status, got.Raw)
	}
	status, next := respond(t, url, in.key, `{"model":"sim-chat","max_output_tokens":16,"input":`+strings.TrimSuffix(c.Get("output").Raw, "]")+`,{"role":"user","content":"and?"}]}`)
	if status != http.StatusOK || next.Get("usage.input_tokens").Int() < c.Get("usage.output_tokens").Int() {
		t.Errorf("%d %s", status, next.Raw)
	}
}
