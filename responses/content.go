package responses

import (
	"strings"

	"github.com/tidwall/gjson"
)

// textsOf lists the texts of an array of parts, escaped as they came.
func textsOf(parts gjson.Result) []string {
	var texts []string
	parts.ForEach(func(_, part gjson.Result) bool {
		switch part.Get("type").Str {
		case "input_text", "output_text", "reasoning_text", "text", "summary_text":
			texts = append(texts, inner(part.Get("text").Raw))
		case "refusal":
			texts = append(texts, inner(part.Get("refusal").Raw))
		case "input_file":
			if text := part.Get(loadedText); text.Exists() {
				texts = append(texts, inner(text.Raw))
			}
		}
		return true
	})
	return texts
}

// imagesOf lists the images of an array of parts, and the files that are no
// text, as Chat has them.
func imagesOf(parts gjson.Result) []string {
	var images []string
	parts.ForEach(func(_, part gjson.Result) bool {
		switch part.Get("type").Str {
		case "input_image":
			images = append(images, imagePart(part))
		case "input_file":
			if !part.Get(loadedText).Exists() {
				images = append(images, filePart(part))
			}
		}
		return true
	})
	return images
}

func imagePart(part gjson.Result) string {
	detail := ""
	if d := part.Get("detail").Str; d != "" && d != "auto" {
		detail = `,"detail":"` + d + `"`
	}
	url := part.Get(loadedURL)
	if !url.Exists() {
		url = part.Get("image_url")
	}
	return `{"type":"image_url","image_url":{"url":` + url.Raw + detail + `}}`
}

// appendContent renders the parts of a message for Chat: a text where all of
// them are, because some templates know nothing else.
func appendContent(b []byte, parts gjson.Result) []byte {
	plain := true
	parts.ForEach(func(_, part gjson.Result) bool {
		kind := part.Get("type").Str
		plain = kind != "input_image" && (kind != "input_file" || part.Get(loadedText).Exists())
		return plain
	})
	if plain {
		return append(appendJoined(append(b, '"'), textsOf(parts), `\n`), '"')
	}
	return append(b, mixedContent(parts)...)
}

// appendJoined is strings.Join without a copy of its own.
func appendJoined(b []byte, texts []string, between string) []byte {
	for i, text := range texts {
		if i > 0 {
			b = append(b, between...)
		}
		b = append(b, text...)
	}
	return b
}

// mixedContent renders parts that are not all texts.
func mixedContent(parts gjson.Result) string {
	var chat []string
	parts.ForEach(func(_, part gjson.Result) bool {
		switch part.Get("type").Str {
		case "input_image":
			chat = append(chat, imagePart(part))
		case "input_file":
			if text := part.Get(loadedText); text.Exists() {
				chat = append(chat, `{"type":"text","text":`+text.Raw+`}`)
				break
			}
			chat = append(chat, filePart(part))
		default:
			chat = append(chat, `{"type":"text","text":"`+strings.Join(textsOf(gjson.Parse("["+part.Raw+"]")), "")+`"}`)
		}
		return true
	})
	return "[" + strings.Join(chat, ",") + "]"
}

// filePart is a file that goes as it is: what was loaded of it, or its data, or
// its address.
func filePart(part gjson.Result) string {
	member, value := "file_data", part.Get(loadedURL)
	if !value.Exists() {
		value = part.Get(member)
	}
	if !value.Exists() {
		member, value = "file_url", part.Get("file_url")
	}
	name := ""
	if v := part.Get("filename"); v.Exists() {
		name = `"filename":` + v.Raw + `,`
	}
	return `{"type":"file","file":{` + name + `"` + member + `":` + value.Raw + `}}`
}
