package main

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"
)

// Items of conversations may show images and files, too. They are loaded when
// they are added, and the model is given the same in every turn.
func TestAConversationKeepsItsMedia(t *testing.T) {
	t.Parallel()
	image, err := base64.StdEncoding.DecodeString(redPixel)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	site := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n := byte(asked.Add(1)) // what is at an address changes
		switch r.URL.Path {
		case "/cat.png":
			_, _ = rw.Write(append(slices.Clip(image), n))
		case "/q3.pdf":
			_, _ = io.WriteString(rw, smallPDF)
		default:
			http.NotFound(rw, r)
		}
	}))
	t.Cleanup(site.Close)
	w := &whole{sound: startEngine(t)}
	w.installation = installWith(t, strings.ReplaceAll(testCatalogue, "ENGINE", w.sound))
	port := site.URL[strings.LastIndex(site.URL, ":")+1:]
	url, _ := w.serve(t, "WEIR_OUTBOUND_ALLOW=127.0.0.1", "WEIR_OUTBOUND_PORTS="+port)
	other, _ := w.serve(t, "WEIR_MEDIA_FETCH=off")

	pixel, pdf := "data:image/png;base64,"+redPixel, "data:application/pdf;base64,"+base64.StdEncoding.EncodeToString([]byte(smallPDF))
	first := `{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"` + site.URL + `/cat.png"},{"type":"input_image","image_url":"` + pixel + `"}]}`
	second := `{"role":"user","content":[{"type":"input_file","filename":"q1.pdf","file_data":"` + pdf + `"},{"type":"input_file","filename":"q3.pdf","file_url":"` + site.URL + `/q3.pdf"}]}`
	w.url = url
	created := w.send(t, w.key, "/v1/conversations", `{"items":[`+first+`]}`)
	if created.status != http.StatusOK {
		t.Fatalf("%d %s", created.status, created.text)
	}
	id := gjson.Get(created.text, "id").Str
	if added := w.send(t, w.key, "/v1/conversations/"+id+"/items", `{"items":[`+second+`]}`); added.status != http.StatusOK || strings.Contains(added.text, "weir_") {
		t.Fatalf("%d %s", added.status, added.text)
	}
	fetched := asked.Load()

	var messages []string
	for _, at := range []string{url, other} { // the other one fetches nothing
		status, r := respond(t, at, w.key, `{"model":"sim-chat","input":"what is it?","max_output_tokens":16,"conversation":"`+id+`"}`)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, r.Raw)
		}
		all := w.asked(t, "what is it?")
		messages = append(messages, gjson.Get(all[len(all)-1].Body, "messages").Raw)
	}
	if asked.Load() != fetched {
		t.Error("what was loaded is loaded again")
	}
	for _, want := range []string{pixel, "data:image/png;base64," + redPixel[:60], `[q1.pdf]\nSales rose.`, `[q3.pdf]\nSales rose.`} {
		if !strings.Contains(messages[0], want) {
			t.Errorf("the engine was not told %s, but %s", want, messages[0])
		}
	}
	if strings.Contains(messages[0], "http:") || !strings.HasPrefix(messages[1], strings.TrimSuffix(messages[0], "]")) {
		t.Errorf("the second turn is not the first one and more:\n%s\n%s", messages[0], messages[1])
	}

	_, list := call(t, http.MethodGet, other+"/v1/conversations/"+id+"/items?order=asc&limit=2", w.key)
	for path, want := range map[string]string{
		"data.0.content.1.image_url": site.URL + "/cat.png", "data.0.content.2.image_url": pixel,
		"data.1.content.0.file_data": pdf, "data.1.content.1.file_url": site.URL + "/q3.pdf",
	} {
		if got := list.Get(path).Str; got != want {
			t.Errorf("%s is shown as %q, want what was sent", path, got)
		}
	}
	one := list.Get("data.0")
	if _, got := call(t, http.MethodGet, other+"/v1/conversations/"+id+"/items/"+one.Get("id").Str, w.key); got.Raw != one.Raw || strings.Contains(list.Raw, "weir_") {
		t.Errorf("alone it is shown as %s", got.Raw)
	}

	for name, bad := range map[string]struct{ item, param, code string }{
		"an image that isn't there": {`{"role":"user","content":[{"type":"input_image","image_url":"` + site.URL + `/none.png"}]}`, "items[0].content[0].image_url", "failed_to_download_image"},
		"an image inside":           {`{"role":"user","content":[{"type":"input_image","image_url":"http://10.0.0.1:` + port + `/"}]}`, "items[0].content[0].image_url", "failed_to_download_image"},
		"a document that is broken": {`{"role":"user","content":[{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf,%25PDF-1.7%0Abroken"}]}`, "items[0].content[0].file_data", "invalid_file"},
	} {
		for _, path := range []string{"/v1/conversations", "/v1/conversations/" + id + "/items"} {
			got := w.send(t, w.key, path, `{"items":[`+bad.item+`]}`)
			if fault := gjson.Get(got.text, "error"); got.status != http.StatusBadRequest || fault.Get("param").Str != bad.param || fault.Get("code").Str != bad.code {
				t.Errorf("%s at %s: %d %s", name, path, got.status, got.text)
			}
		}
	}
	if _, after := call(t, http.MethodGet, url+"/v1/conversations/"+id+"/items", w.key); len(after.Get("data").Array()) != 6 {
		t.Errorf("what was refused is there: %s", after.Raw)
	}
}
