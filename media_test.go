package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

const redPixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// smallPDF says "Sales rose."
const smallPDF = "%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Kids[3 0 R]/Count 1>>\nendobj\n" +
	"3 0 obj\n<</Type/Page/Parent 2 0 R/Contents 5 0 R/Resources<</Font<</F1 4 0 R>>>>>>\nendobj\n" +
	"4 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>\nendobj\n" +
	"5 0 obj\n<</Length 47>>stream\nBT /F1 12 Tf 72 700 Td (Sales rose.) Tj ET     \nendstream\nendobj\n" +
	"xref\n0 6\n0000000000 65535 f \n0000000009 00000 n \n0000000054 00000 n \n0000000105 00000 n \n0000000195 00000 n \n0000000283 00000 n \n" +
	"trailer\n<</Size 6/Root 1 0 R>>\nstartxref\n377\n%%EOF\n"

func TestMediaAreFetchedByTheGatewayAlone(t *testing.T) {
	t.Parallel()
	image, err := base64.StdEncoding.DecodeString(redPixel)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	pictures := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
			return
		}
		// Each time another image, by its last byte.
		_, _ = w.Write(append(slices.Clip(image), byte(asked.Add(1))))
	}))
	t.Cleanup(pictures.Close)
	engine := startEngine(t)
	in := installWith(t, strings.ReplaceAll(testCatalogue, "ENGINE", engine))
	port := pictures.URL[strings.LastIndex(pictures.URL, ":")+1:]
	url, _ := in.serve(t, "WEIR_OUTBOUND_ALLOW=127.0.0.1", "WEIR_OUTBOUND_PORTS="+port)
	other, _ := in.serve(t, "WEIR_MEDIA_FETCH=off")

	w := &whole{installation: in, url: url, sound: engine}
	chat := `{"model":"sim-chat","max_tokens":4,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + pictures.URL + `/cat.png"}},` +
		`{"type":"file","file":{"filename":"q3.pdf","file_data":"data:application/pdf;base64,` + base64.StdEncoding.EncodeToString([]byte(smallPDF)) + `"}}]}]}`
	got := w.send(t, in.key, "/v1/chat/completions", chat)
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.text)
	}
	messages := string(arrivedAt(t, engine, got.id).fields["messages"])
	if strings.Contains(messages, "http:") || !strings.Contains(messages, "data:image/png;base64,"+redPixel[:60]) || !strings.Contains(messages, `[q3.pdf]\nSales rose.`) {
		t.Errorf("the engine was told %s", messages)
	}

	// A chain gives the model the image that it saw, on a replica that fetches
	// nothing, whatever is at the address by now.
	status, one := respond(t, url, in.key, `{"model":"sim-chat","max_output_tokens":16,"input":[{"role":"user","content":[{"type":"input_text","text":"`+strings.Repeat("what is in the river? ", 40)+`"},{"type":"input_image","image_url":"`+pictures.URL+`/cat.png"}]}]}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, one.Raw)
	}
	fetched := asked.Load()
	status, two := respond(t, other, in.key, `{"model":"sim-chat","max_output_tokens":16,"input":"and then?","previous_response_id":"`+one.Get("id").Str+`"}`)
	if status != http.StatusOK || asked.Load() != fetched {
		t.Fatalf("%d %s, fetched again: %t", status, two.Raw, asked.Load() != fetched)
	}
	if before, cached := one.Get("usage.input_tokens").Int(), two.Get("usage.input_tokens_details.cached_tokens").Int(); cached < before-16 {
		t.Errorf("%d tokens of the earlier prompt's %d were cached", cached, before)
	}
	status, list := call(t, http.MethodGet, other+"/v1/responses/"+one.Get("id").Str+"/input_items", in.key)
	if address := list.Get("data.0.content.1.image_url").Str; status != http.StatusOK || address != pictures.URL+"/cat.png" || strings.Contains(list.Raw, "weir_") {
		t.Errorf("shown as %s", list.Raw)
	}

	for name, tt := range map[string]struct{ at, image, code string }{
		"another machine":      {url, "http://10.0.0.1:" + port + "/", "failed_to_download_image"},
		"a redirect inside":    {url, pictures.URL + "/away", "failed_to_download_image"},
		"the gateway's own":    {url, url + "/v1/models", "failed_to_download_image"},
		"where nothing may be": {other, pictures.URL + "/cat.png", "invalid_image_url"},
	} {
		content, err := json.Marshal(tt.image)
		if err != nil {
			t.Fatal(err)
		}
		status, got := respond(t, tt.at, in.key, `{"model":"sim-chat","input":[{"role":"user","content":[{"type":"input_image","image_url":`+string(content)+`}]}]}`)
		if status != http.StatusBadRequest || got.Get("error.code").Str != tt.code || got.Get("error.param").Str != "input[0].content[0].image_url" {
			t.Errorf("%s: %d %s", name, status, got.Raw)
		}
	}
	status, broken := respond(t, url, in.key, `{"model":"sim-chat","input":[{"role":"user","content":[{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf,%25PDF-1.7%0Abroken"}]}]}`)
	if status != http.StatusBadRequest || broken.Get("error.code").Str != "invalid_file" {
		t.Errorf("a broken document: %d %s", status, broken.Raw)
	}
}
