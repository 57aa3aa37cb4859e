package inference

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/gateway/catalogue"
	"weir/gateway/media"
)

// desk loads media for a test: addresses become data that names them.
type desk struct {
	asked [][]media.Source
	err   error
}

func (d *desk) load(sources []media.Source) ([]media.Loaded, error) {
	d.asked = append(d.asked, sources)
	if d.err != nil {
		return nil, d.err
	}
	var out []media.Loaded
	for _, s := range sources {
		name := s.Name
		if name == "" {
			name = "fetched"
		}
		if s.Text {
			out = append(out, media.Loaded{Name: name, Text: "text of \"" + s.URL + "\""})
		} else {
			out = append(out, media.Loaded{Name: name, URL: "data:x/y;base64," + s.URL})
		}
	}
	return out, nil
}

func parseMedia(t *testing.T, model *catalogue.Model, d *desk, content string) (Request, error) {
	t.Helper()
	return NewParser().Parse(Input{
		Operation: chat, Principal: &tenantsPrincipal, Models: shelf{"m": model}, Media: d.load,
		Body: []byte(`{"messages":[{"role":"user","content":[` + content + `]}],"model":"m"}`),
	})
}

func TestEnginesAreGivenBytesAndNoAddress(t *testing.T) {
	t.Parallel()
	anything := &catalogue.Model{}
	native := &catalogue.Model{Files: catalogue.NativeFiles}
	for _, tt := range []struct {
		name, content, want string
		model               *catalogue.Model
		asked               []media.Source
	}{
		{
			"an image", `{"type":"image_url","image_url":{"url":"https://a/b","detail":"low"}}`,
			`{"type":"image_url","image_url":{"url":"data:x/y;base64,https://a/b","detail":"low"}}`, anything,
			[]media.Source{{Kind: media.Image, URL: "https://a/b"}},
		},
		{
			"an escaped address", `{"type":"image_url","image_url":{"url":"\u0068ttp:\/\/a"}}`,
			`{"type":"image_url","image_url":{"url":"data:x/y;base64,http://a"}}`, anything,
			[]media.Source{{Kind: media.Image, URL: "http://a"}},
		},
		{
			"both of an address given twice", `{"type":"image_url","image_url":{"url":"http://a","url":"http://b","id":"x"},"uuid":1}`,
			`{"type":"image_url","image_url":{"url":"data:x/y;base64,http://a","url":"data:x/y;base64,http://b"}}`, anything,
			[]media.Source{{Kind: media.Image, URL: "http://a"}, {Kind: media.Image, URL: "http://b"}},
		},
		{
			"data beside an address", `{"type":"image_url","image_url":{"url":"data:,a"}},{"type":"text","text":"and"},{"type":"image_url","image_url":{"url":"http://a"}}`,
			`{"type":"image_url","image_url":{"url":"data:,a"}},{"type":"text","text":"and"},{"type":"image_url","image_url":{"url":"data:x/y;base64,http://a"}}`, anything,
			[]media.Source{{Kind: media.Image, URL: "http://a"}},
		},
		{
			"a file becomes text", `{"uuid":"k","type":"file","file":{"filename":"a.pdf","id":7,"file_data":"data:,x"}},{"type":"text","text":"?"}`,
			`{"type":"text","text":"[a.pdf]\ntext of \"data:,x\""},{"type":"text","text":"?"}`, anything,
			[]media.Source{{Kind: media.File, URL: "data:,x", Name: "a.pdf", Text: true}},
		},
		{
			"a file goes as it came to a model that reads it", `{"type":"file","file":{"x":1,"file_data":"data:,x","filename":"a.pdf"}}`,
			`{"type":"file","file":{"filename":"a.pdf","file_data":"data:,x"}}`, native, nil,
		},
		{
			"a file at an address", `{"type":"file","file":{"file_url":"http://a"}}`,
			`{"type":"file","file":{"filename":"fetched","file_data":"data:x/y;base64,http://a"}}`, native,
			[]media.Source{{Kind: media.File, URL: "http://a"}},
		},
		{"nothing to load", `{"type":"image_url","image_url":{"url":"data:,a"}}`, `{"type":"image_url","image_url":{"url":"data:,a"}}`, anything, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := &desk{}
			req, err := parseMedia(t, tt.model, d, tt.content)
			if err != nil {
				t.Fatal(err)
			}
			want := `"messages":[{"role":"user","content":[` + tt.want + `]}]`
			if diff := cmp.Diff(want, string(req.Call.Fields)); diff != "" {
				t.Error(diff)
			}
			if got := string(req.Call.Prompt[1]); !strings.Contains(want, got) || got == "" {
				t.Errorf("prompt %s", got)
			}
			var asked []media.Source
			if len(d.asked) > 0 {
				asked = d.asked[0]
			}
			if diff := cmp.Diff(tt.asked, asked); diff != "" || len(d.asked) > 1 {
				t.Errorf("loaded %d times: %s", len(d.asked), diff)
			}
		})
	}
}

// What is left of a body without its media is text, of which tokens can be
// estimated.
func TestMediaOfABodyAreCounted(t *testing.T) {
	t.Parallel()
	anything, native := &catalogue.Model{}, &catalogue.Model{Files: catalogue.NativeFiles}
	for _, tt := range []struct {
		name, content string
		model         *catalogue.Model
		media         []string // as they stand in what goes to the engine
	}{
		{"text that names data", `{"type":"text","text":"data:image/png;base64,AAAA"}`, anything, nil},
		{"an image", `{"type":"image_url","image_url":{"url":"data:,abc"}}`, anything, []string{`"data:,abc"`}},
		{"an image that is fetched", `{"type":"image_url","image_url":{"url":"http://a"}}`, anything, []string{`"data:x/y;base64,http://a"`}},
		{
			"two of them", `{"type":"image_url","image_url":{"url":"http://a"}},{"type":"image_url","image_url":{"url":"data:,abc"}}`, anything,
			[]string{`"data:x/y;base64,http://a"`, `"data:,abc"`},
		},
		{"a recording", `{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`, anything, []string{`"AAAA"`}},
		{"a file that becomes text", `{"type":"file","file":{"file_data":"data:,x"}}`, anything, nil},
		{"a file that goes as it came", `{"type":"file","file":{"file_data":"data:,x"}}`, native, []string{`"data:,x"`}},
		{"a file that is fetched", `{"type":"file","file":{"file_url":"http://a"}}`, native, []string{`"data:x/y;base64,http://a"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, err := parseMedia(t, tt.model, &desk{}, tt.content)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, m := range tt.media {
				if !strings.Contains(string(req.Call.Fields), m) {
					t.Errorf("%s is not in %s", m, req.Call.Fields)
				}
				want += len(m)
			}
			if req.Call.MediaBytes != want {
				t.Errorf("%d bytes of media, want %d", req.Call.MediaBytes, want)
			}
		})
	}
}

func TestMediaThatAModelDoesNotTakeAreRefusedUnfetched(t *testing.T) {
	t.Parallel()
	text := &catalogue.Model{Name: "m", Modalities: []string{"text"}}
	for _, tt := range []struct{ name, content, code, param string }{
		{"an image", `{"type":"image_url","image_url":{"url":"data:,a"}}`, codeUnsupported, ".image_url.url"},
		{"an image at an address", `{"type":"image_url","image_url":{"url":"http://a"}}`, codeUnsupported, ".image_url.url"},
		{"sound", `{"type":"audio_url","audio_url":{"url":"data:,a"}}`, codeUnsupported, ".audio_url.url"},
		{"a recording", `{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`, codeUnsupported, ".input_audio"},
		{"a video", `{"type":"video_url","video_url":{"url":"data:,a"}}`, codeUnsupported, ".video_url.url"},
		{"a stored file", `{"type":"file","file":{"file_id":"file-1"}}`, codeUnsupported, ".file.file_id"},
		{"a file without content", `{"type":"file","file":{"filename":"a"}}`, codeMissing, ".file.file_data"},
		{"a file that is a string", `{"type":"file","file":"data:,x"}`, codeType, ".file"},
		{"a request that is wrong anyway", `{"type":"file","file":{"file_url":"http://a"}},{"type":"text"}`, codeMissing, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := &desk{}
			_, err := parseMedia(t, text, d, tt.content)
			problem, ok := errors.AsType[*Problem](err)
			if !ok || problem.Code != tt.code || tt.param != "" && problem.Param != "messages[0].content[0]"+tt.param {
				t.Errorf("%#v", err)
			}
			if len(d.asked) > 0 {
				t.Errorf("loaded %v", d.asked)
			}
		})
	}
	if _, err := parseMedia(t, text, &desk{}, `{"type":"file","file":{"file_data":"data:,x"}}`); err != nil {
		t.Errorf("the text of a file, for a model of text: %v", err)
	}
	d := &desk{}
	_, err := NewParser().Parse(Input{
		Operation: chat, Principal: &tenantsPrincipal, Models: shelf{}, Media: d.load,
		Body: []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}],"model":"m"}`),
	})
	if err != nil || len(d.asked) > 0 {
		t.Errorf("for a model that isn't there: %v, loaded %v", err, d.asked)
	}
}

func TestFaultsOfMediaNameTheirPlace(t *testing.T) {
	t.Parallel()
	d := &desk{err: &media.Problem{Source: 1, Code: "failed_to_download_image", Message: "It is not there."}}
	content := `{"type":"file","file":{"file_data":"x"}},{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://a"}}`
	_, err := parseMedia(t, &catalogue.Model{}, d, content)
	problem, ok := errors.AsType[*Problem](err)
	if !ok || problem.Param != "messages[0].content[2].image_url.url" || problem.Code != "failed_to_download_image" || !strings.Contains(problem.Message, "It is not there.") {
		t.Errorf("%#v", err)
	}
	for _, passes := range []error{context.Canceled, &media.BusyError{Own: true}} {
		if _, err := parseMedia(t, &catalogue.Model{}, &desk{err: passes}, content); !errors.Is(err, passes) {
			t.Errorf("%v became %v", passes, err)
		}
	}
}
