package inference

import (
	"bytes"
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"weir/api/inference/jsonscan"
	"weir/gateway/catalogue"
	"weir/gateway/media"
)

// medium is an image, a sound, a video or a file of a message.
type medium struct {
	modality string // what a model must take; empty: a file, which becomes text
	at       int    // the value that is at fault where one is
	edit     int    // in edits, where it is to be replaced; -1: it goes as it came
	source   media.Source
	file     fileMembers
}

// fileMembers are the members of a file, as JSON.
type fileMembers struct{ name, data, url []byte }

// pending stands in the place of what is loaded later: a value like any other.
const pending = `""`

// readMedia reads {url, detail}. An engine would fetch an address by itself,
// from inside our network: only data travels in a request to it, and addresses
// of images are fetched by us.
func (p *parse) readMedia(member payload) {
	url := false
	at := p.object("messages[].content[].url", func(name []byte) bool {
		switch string(name) {
		case "url":
			url = true
			p.readMediaURL(member)
		case "detail":
			p.readWord("auto", "low", "high", "original")
		default:
			return false
		}
		return true
	})
	p.need(at, "url", url)
}

func (p *parse) readMediaURL(member payload) {
	if !p.expect(jsonscan.String) {
		return
	}
	m := medium{at: p.Offset(), edit: -1}
	switch member {
	case image:
		m.modality = catalogue.Images
	case sound:
		m.modality = catalogue.Audio
	default:
		m.modality = catalogue.Video
	}
	text := p.Text()
	switch {
	case p.Err() != nil:
		return
	case bytes.HasPrefix(text, []byte("data:")):
		p.call.MediaBytes += p.Offset() - m.at
	case member == image && p.in.Media != nil:
		m.source = media.Source{Kind: media.Image, URL: string(jsonscan.Unquote(text))}
		m.edit = len(p.edits)
		p.replace(m.at, p.Offset(), pending)
	case member == image:
		p.refuse(m.at, codeUnsupported, "%s must be a data: URL. Media are not fetched from addresses; send their bytes.")
	default:
		p.refuse(m.at, codeUnsupported, "%s must be a data: URL. Only images are fetched from addresses; send the bytes.")
	}
	p.media = append(p.media, m)
}

// readFile reads {filename, file_data, file_url}; the last one is Responses'.
func (p *parse) readFile(f *fileMembers) {
	at := p.object("messages[].content[].file", func(name []byte) bool {
		from := p.skipSpace(p.Offset())
		switch string(name) {
		case "filename":
			p.readText(maxName)
			f.name = p.body[from:p.Offset()]
		case "file_data":
			p.readString()
			f.data = p.body[from:p.Offset()]
		case "file_url":
			p.readString()
			f.url = p.body[from:p.Offset()]
		case "file_id":
			p.refuse(p.Offset(), codeUnsupported, "%s is not supported: there are no stored files. Give the content as a data: URL in 'file_data'.")
			p.Skip()
		default:
			return false
		}
		return true
	})
	p.need(at, "file_data", f.data != nil || f.url != nil)
}

// addFile puts a file down for what its model takes, which may not be known
// yet. Edits inside of the part are void: it is written anew.
func (p *parse) addFile(at, edits int, f fileMembers) {
	if p.in.Media == nil {
		p.refuse(at, codeUnsupported, "%s: files are not read here. Send their text.")
		return
	}
	p.edits = p.edits[:edits]
	p.media = append(p.media, medium{at: at, edit: edits, file: f})
	p.replace(at, p.Offset(), pending)
}

// settleMedia refuses media that the model doesn't take, and loads those that
// don't travel as they came.
func (p *parse) settleMedia() {
	if p.Err() != nil || len(p.media) == 0 || p.in.Models == nil {
		return
	}
	model, ok := p.in.Models.Lookup(p.call.Model)
	if !ok {
		return // refused for that, by who resolves it
	}
	var sources []media.Source
	var wanted []*medium
	for i := range p.media {
		m := &p.media[i]
		if m.modality != "" && !model.Takes(m.modality) {
			p.refuse(m.at, codeUnsupported, "%s: the model %q takes no media of this kind (%s).", model.Name, m.modality)
			return
		}
		if m.modality == "" && !m.fileSource(model.Files == catalogue.NativeFiles) {
			p.edits[m.edit].with = filePart(m.file.name, m.file.data)
			p.call.MediaBytes += len(m.file.data)
			continue
		}
		if m.edit >= 0 {
			sources, wanted = append(sources, m.source), append(wanted, m)
		}
	}
	if len(sources) > 0 {
		p.loadMedia(sources, wanted)
	}
}

// fileSource sets what has to be loaded of a file; false where its data can go
// as it is.
func (m *medium) fileSource(native bool) bool {
	m.source = media.Source{Kind: media.File, Name: gjson.ParseBytes(m.file.name).String(), Text: !native}
	if m.file.data != nil {
		m.source.URL = gjson.ParseBytes(m.file.data).String()
		return !native
	}
	m.source.URL = gjson.ParseBytes(m.file.url).String()
	return true
}

func (p *parse) loadMedia(sources []media.Source, wanted []*medium) {
	loaded, err := p.in.Media(sources)
	if fault, ok := errors.AsType[*media.Problem](err); ok {
		at := wanted[min(fault.Source, len(wanted)-1)].at
		p.refuse(at, fault.Code, "%s: %s", fault.Message)
		return
	}
	if err != nil {
		p.Fail(err)
		return
	}
	for i, m := range wanted {
		switch e := &p.edits[m.edit]; {
		case m.source.Kind == media.Image:
			e.with = quote(loaded[i].URL)
			p.call.MediaBytes += len(e.with)
		case m.source.Text:
			e.with = `{"type":"text","text":` + quote(loaded[i].Prompt()) + `}`
		default:
			data := quote(loaded[i].URL)
			e.with = filePart([]byte(quote(loaded[i].Name)), []byte(data))
			p.call.MediaBytes += len(data)
		}
	}
}

// filePart is a file for a model that reads files.
func filePart(name, data []byte) string {
	var b strings.Builder
	b.WriteString(`{"type":"file","file":{`)
	if len(name) > 2 {
		b.WriteString(`"filename":`)
		b.Write(name)
		b.WriteByte(',')
	}
	b.WriteString(`"file_data":`)
	b.Write(data)
	b.WriteString(`}}`)
	return b.String()
}

func quote(s string) string { return string(gjson.AppendJSONString(nil, s)) }

// addRecording puts a recording down for a model that has to take it.
func (p *parse) addRecording(at int) {
	p.media = append(p.media, medium{modality: catalogue.Audio, at: at, edit: -1})
}
