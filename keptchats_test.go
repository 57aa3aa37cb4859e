package main

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestAChatIsKeptWithItsReceipt(t *testing.T) {
	t.Parallel()
	in := install(t)
	first, _ := in.serve(t)
	second, _ := in.serve(t)
	const at = "/v1/chat/completions"

	_, unkept := ask(t, http.MethodPost, first+at, in.key, `{"model":"sim-chat","max_tokens":4,"messages":[{"role":"user","content":"not kept"}]}`)
	status, said := ask(t, http.MethodPost, first+at, in.key, `{"model":"sim-chat","store":true,"metadata":{"topic":"weirs"},"max_tokens":4,"messages":[{"role":"user","content":"of weirs"}]}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, said.Raw)
	}
	res, err := post(t.Context(), first+at, in.key, `{"model":"sim-chat","store":true,"stream":true,"max_tokens":8,"messages":[{"role":"user","content":"of rivers"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	streamed, text := "", ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok {
			streamed = gjson.Get("{"+data, "id").Str
			text += gjson.Get("{"+data, "choices.0.delta.content").Str
		}
	}

	// The end was seen, so another replica has it.
	status, got := ask(t, http.MethodGet, second+at+"/"+said.Get("id").Str, in.key, "")
	if status != http.StatusOK || got.Get("choices").Raw != said.Get("choices").Raw || got.Get("metadata.topic").Str != "weirs" {
		t.Errorf("%d %s", status, got.Raw)
	}
	status, got = ask(t, http.MethodGet, second+at+"/"+streamed, in.key, "")
	if status != http.StatusOK || got.Get("choices.0.message.content").Str != text || text == "" || got.Get("usage.completion_tokens").Int() != 8 || got.Get("choices.0.finish_reason").Str != "length" {
		t.Errorf("said %q, kept %d %s", text, status, got.Raw)
	}
	if status, got = ask(t, http.MethodGet, second+at+"/"+unkept.Get("id").Str, in.key, ""); status != http.StatusNotFound {
		t.Errorf("kept what nobody asked for: %d %s", status, got.Raw)
	}
	_, got = ask(t, http.MethodGet, second+at+"?metadata[topic]=weirs&model=sim-chat", in.key, "")
	described(t, "ChatCompletionList", got)
	if got.Get("data.#.id").Raw != `["`+said.Get("id").Str+`"]` {
		t.Errorf("listed %s", got.Raw)
	}
	_, got = ask(t, http.MethodGet, second+at+"/"+streamed+"/messages", in.key, "")
	described(t, "MessageList", got)
	if got.Get("data.0.content").Str != "of rivers" {
		t.Errorf("messages %s", got.Raw)
	}
	if _, got = ask(t, http.MethodPost, second+at+"/"+streamed, in.key, `{"metadata":{"topic":"rivers"}}`); got.Get("metadata.topic").Str != "rivers" {
		t.Errorf("labelled %s", got.Raw)
	}
	if status, got = ask(t, http.MethodDelete, second+at+"/"+streamed, in.key, ""); status != http.StatusOK || !got.Get("deleted").Bool() {
		t.Errorf("%d %s", status, got.Raw)
	}
	if status, _ = ask(t, http.MethodGet, first+at+"/"+streamed, in.key, ""); status != http.StatusNotFound {
		t.Errorf("deleted, but shown: %d", status)
	}
}
