package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestAResponseHasTheHeadersOfAChat(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	for _, stream := range []string{"false", "true"} {
		r := h.send(t, http.MethodPost, "/v1/responses", strings.NewReader(`{"model":"sim-chat","input":"x","store":false,"client_metadata":{},"stream":`+stream+`}`))
		if r.status != http.StatusOK {
			t.Fatalf("%d %s", r.status, r.body)
		}
		for name, want := range map[string]string{
			"X-Weir-Queue-Ms": "12", "X-Weir-Band": "standard", "X-Weir-Ignored": "client_metadata",
			"X-Ratelimit-Limit-Requests": "60", "X-Ratelimit-Remaining-Requests": "59", "X-Ratelimit-Reset-Requests": "1s",
		} {
			if got := r.header.Get(name); got != want {
				t.Errorf("stream %s: %s is %q, want %q", stream, name, got, want)
			}
		}
		if r.header.Get("X-Request-Id") == "" || r.header.Get("Openai-Processing-Ms") == "" {
			t.Errorf("headers %v", r.header)
		}
	}
}

func TestAFaultOfAResponsesInputIsNamedByItsOwnParameter(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	r := h.send(t, http.MethodPost, "/v1/responses", strings.NewReader(`{"model":"sim-chat","store":false,"input":[{"role":"user","content":[{"type":"input_image","image_url":"ftp://x"}]}]}`))
	if r.status != http.StatusBadRequest || strings.Contains(r.body, `"messages`) || !strings.Contains(r.body, `"param":"input`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}
