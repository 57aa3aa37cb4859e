package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// respond posts a request to /v1/responses and returns the answer's status and
// body.
func respond(t *testing.T, url, key, body string) (int, gjson.Result) {
	t.Helper()
	res, err := post(t.Context(), url+"/v1/responses", key, body)
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

func call(t *testing.T, method, url, key string) (int, gjson.Result) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
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

func TestAnotherReplicaGoesOnWithAChain(t *testing.T) {
	t.Parallel()
	in := install(t)
	first, _ := in.serve(t)
	second, _ := in.serve(t)

	status, one := respond(t, first, in.key, `{"model":"sim-chat","input":"`+strings.Repeat("a long question about rivers ", 40)+`","max_output_tokens":16}`)
	if status != http.StatusOK || one.Get("status").Str == "" || one.Get("output.0.content.0.text").Str == "" {
		t.Fatalf("%d %s", status, one.Raw)
	}
	id := one.Get("id").Str
	status, two := respond(t, second, in.key, `{"model":"sim-chat","input":"and then?","max_output_tokens":16,"previous_response_id":"`+id+`"}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, two.Raw)
	}
	// The engine has the whole earlier prompt in its prefix cache: the second
	// turn began with the same bytes.
	before, cached := one.Get("usage.input_tokens").Int(), two.Get("usage.input_tokens_details.cached_tokens").Int()
	if cached < before-16 {
		t.Errorf("%d tokens of the earlier prompt's %d were cached", cached, before)
	}
	if status, got := call(t, http.MethodGet, second+"/v1/responses/"+id, in.key); status != http.StatusOK || got.Get("output").Raw != one.Get("output").Raw {
		t.Errorf("shown as %d %s", status, got.Raw)
	}
	status, list := call(t, http.MethodGet, first+"/v1/responses/"+two.Get("id").Str+"/input_items?order=asc&limit=2", in.key)
	if status != http.StatusOK || len(list.Get("data").Array()) != 2 || !list.Get("has_more").Bool() || list.Get("data.0.role").Str != "user" {
		t.Errorf("input %d %s", status, list.Raw)
	}

	if status, _ := call(t, http.MethodDelete, first+"/v1/responses/"+id, in.key); status != http.StatusOK {
		t.Errorf("delete: %d", status)
	}
	for _, url := range []string{first, second} {
		if status, body := call(t, http.MethodGet, url+"/v1/responses/"+id, in.key); status != http.StatusNotFound {
			t.Errorf("deleted, but shown: %d %s", status, body.Raw)
		}
		status, body := respond(t, url, in.key, `{"model":"sim-chat","input":"x","previous_response_id":"`+id+`"}`)
		if status != http.StatusBadRequest || body.Get("error.code").Str != "previous_response_not_found" {
			t.Errorf("deleted, but gone on from: %d %s", status, body.Raw)
		}
	}
	status, three := respond(t, first, in.key, `{"model":"sim-chat","input":"still there?","max_output_tokens":16,"previous_response_id":"`+two.Get("id").Str+`"}`)
	if status != http.StatusOK || three.Get("usage.input_tokens_details.cached_tokens").Int() < before {
		t.Errorf("the deleted parent's items are lost: %d %s", status, three.Raw)
	}
}

func TestResponseStreamsEndOnce(t *testing.T) {
	t.Parallel()
	in := install(t)
	url, _ := in.serve(t)
	res, err := post(t.Context(), url+"/v1/responses", in.key, `{"model":"sim-chat","input":"hi","stream":true,"max_output_tokens":16}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var events []string
	id := ""
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, isName := strings.CutPrefix(lines.Text(), "event: ")
		if isName {
			events = append(events, name)
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok && id == "" {
			id = gjson.Get("{"+data, "response.id").Str
		}
	}
	if len(events) < 8 || events[0] != "response.created" || !strings.HasSuffix(strings.Join(events, " "), "response.output_item.done response.incomplete") {
		t.Errorf("events %v", events)
	}
	status, kept := call(t, http.MethodGet, url+"/v1/responses/"+id, in.key)
	if status != http.StatusOK || kept.Get("status").Str != "incomplete" || kept.Get("incomplete_details.reason").Str != "max_output_tokens" {
		t.Errorf("kept %d %s", status, kept.Raw)
	}
	for name, body := range map[string]string{
		"unknown model": `{"model":"none","input":"hi"}`, "no input": `{"model":"sim-chat"}`, "not JSON": `{"model":`,
		"a number": `{"model":"sim-chat","input":12345}`, "unknown engine member": fmt.Sprintf(`{"model":"sim-chat","input":"x","chat_template":%q}`, "x"),
	} {
		status, got := respond(t, url, in.key, body)
		if status == http.StatusInternalServerError || (name != "unknown engine member" && got.Get("error.message").Str == "") {
			t.Errorf("%s: %d %s", name, status, got.Raw)
		}
	}
}

func TestAConversationRemembersAcrossReplicas(t *testing.T) {
	t.Parallel()
	in := install(t)
	first, _ := in.serve(t)
	second, _ := in.serve(t)
	ask := func(method, url, body string) gjson.Result {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+in.key)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %d %s %v", method, url, res.StatusCode, raw, err)
		}
		return gjson.ParseBytes(raw)
	}
	c := ask(http.MethodPost, first+"/v1/conversations", `{"items":[{"role":"user","content":"my name is Ada"}],"metadata":{"topic":"names"}}`)
	at := "/v1/conversations/" + c.Get("id").Str
	for _, url := range []string{first, second} {
		if status, r := respond(t, url, in.key, `{"model":"sim-chat","input":"what is it?","max_output_tokens":16,"conversation":"`+c.Get("id").Str+`"}`); status != http.StatusOK || r.Get("conversation.id").Str != c.Get("id").Str {
			t.Fatalf("%d %s", status, r.Raw)
		}
	}
	items := ask(http.MethodGet, second+at+"/items?order=asc", "")
	if got := items.Get("data.#.role").Raw; got != `["user","user","assistant","user","assistant"]` {
		t.Errorf("said by %s", got)
	}
	last := items.Get("data.4.id").Str
	if got := ask(http.MethodGet, first+at+"/items/"+last, ""); got.Get("role").Str != "assistant" {
		t.Errorf("item %s", got.Raw)
	}
	ask(http.MethodDelete, first+at+"/items/"+last, "")
	ask(http.MethodPost, first+at+"/items", `{"items":[{"role":"assistant","content":"Ada"}]}`)
	if got := ask(http.MethodGet, second+at+"/items?limit=1", ""); got.Get("data.0.content.0.text").Str != "Ada" || !got.Get("has_more").Bool() {
		t.Errorf("newest %s", got.Raw)
	}
	if got := ask(http.MethodPost, second+at, `{"metadata":{"topic":"changed"}}`); got.Get("metadata.topic").Str != "changed" {
		t.Errorf("changed to %s", got.Raw)
	}
	ask(http.MethodDelete, second+at, "")
	if status, _ := call(t, http.MethodGet, first+at, in.key); status != http.StatusNotFound {
		t.Errorf("deleted, but shown: %d", status)
	}
}
