package responses

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"weir/gateway/media"
	"weir/tenants"
)

// An item keeps what the caller sent and, beside it, what the model was given:
// the bytes of an image, the text of a file. A later turn gives the model the
// same again, whatever is at the address by then, so that the engine finds the
// prefix that it knows. These members are ours: no caller sets them or sees
// them.
const (
	loadedURL  = "weir_url"  // data: URL in place of image_url or file_url
	loadedText = "weir_text" // in place of the file
)

// Loader loads media: a *media.Loader.
type Loader interface {
	Load(ctx context.Context, tenant tenants.ID, sources []media.Source) ([]media.Loaded, error)
}

// place is where a source stands in a list of items.
type place struct {
	item int
	path string // of the part in the item
	name string // of the member that names the source
	text bool
}

// LoadMedia fetches what items name by address and reads the text of their
// files, unless the model takes files as they are (native), and keeps both with
// the items. What was loaded before stays. The error is a *Problem where the
// caller is at fault; param is the list's name in it.
func LoadMedia(ctx context.Context, l Loader, tenant tenants.ID, param string, items []Item, native bool) error {
	var sources []media.Source
	var places []place
	for i, it := range items {
		if !bytes.Contains(it.JSON, []byte(`"input_image"`)) && !bytes.Contains(it.JSON, []byte(`"input_file"`)) {
			continue
		}
		content := contentMember(it.Type)
		n := 0
		gjson.GetBytes(it.JSON, content).ForEach(func(_, part gjson.Result) bool {
			if s, name, ok := sourceOf(part, native); ok {
				sources = append(sources, s)
				places = append(places, place{item: i, path: fmt.Sprintf("%s.%d", content, n), name: name, text: s.Text})
			}
			n++
			return true
		})
	}
	if len(sources) == 0 {
		return nil
	}
	loaded, err := l.Load(ctx, tenant, sources)
	if fault, ok := errors.AsType[*media.Problem](err); ok {
		at := places[min(fault.Source, len(places)-1)]
		path := strings.Replace(at.path, ".", "[", 1) + "]"
		return &Problem{Param: fmt.Sprintf("%s[%d].%s.%s", param, at.item, path, at.name), Code: fault.Code, Message: fault.Message}
	}
	if err != nil {
		return err
	}
	for i, at := range places {
		member, value := loadedURL, loaded[i].URL
		if at.text {
			member, value = loadedText, loaded[i].Prompt()
		}
		// A list may share an item with what is kept elsewhere: a new slice.
		b, err := sjson.SetBytes(items[at.item].JSON, at.path+"."+member, value)
		if err != nil {
			return fmt.Errorf("keep media with item %s: %w", items[at.item].ID, err)
		}
		items[at.item].JSON = b
	}
	return nil
}

// contentMember is the member of an item that has parts.
func contentMember(kind string) string {
	if kind == typeMessage {
		return "content"
	}
	return "output"
}

// sourceOf returns what has to be loaded for a part, if anything has, and the
// member that names it.
func sourceOf(part gjson.Result, native bool) (s media.Source, name string, ok bool) {
	if part.Get(loadedURL).Exists() || part.Get(loadedText).Exists() {
		return s, "", false
	}
	switch part.Get("type").Str {
	case "input_image":
		url := part.Get("image_url").String()
		return media.Source{Kind: media.Image, URL: url}, "image_url", !strings.HasPrefix(url, "data:")
	case "input_file":
		name := "file_data"
		if !part.Get(name).Exists() {
			name = "file_url"
		}
		s := media.Source{Kind: media.File, URL: part.Get(name).String(), Name: part.Get("filename").String(), Text: !native}
		return s, name, !native || name == "file_url"
	default:
		return s, "", false
	}
}

// Shown is the item as callers see it: with what they sent.
func (it Item) Shown() []byte {
	if !bytes.Contains(it.JSON, []byte(`"`+loadedURL+`":`)) && !bytes.Contains(it.JSON, []byte(`"`+loadedText+`":`)) {
		return it.JSON
	}
	shown, content := it.JSON, contentMember(it.Type)
	for i := range gjson.GetBytes(it.JSON, content).Array() {
		for _, member := range []string{loadedURL, loadedText} {
			if b, err := sjson.DeleteBytes(shown, fmt.Sprintf("%s.%d.%s", content, i, member)); err == nil {
				shown = b
			}
		}
	}
	return shown
}
