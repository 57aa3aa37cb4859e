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
		}
		return true
	})
	return texts
}

// imagesOf lists the images of an array of parts, as Chat has them.
func imagesOf(parts gjson.Result) []string {
	var images []string
	parts.ForEach(func(_, part gjson.Result) bool {
		if part.Get("type").Str == "input_image" {
			images = append(images, imagePart(part))
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
	return `{"type":"image_url","image_url":{"url":` + part.Get("image_url").Raw + detail + `}}`
}

// contentOf renders the parts of a message for Chat: a text where all of them
// are, because some templates know nothing else.
func contentOf(parts gjson.Result) string {
	plain := true
	var chat []string
	parts.ForEach(func(_, part gjson.Result) bool {
		switch part.Get("type").Str {
		case "input_image":
			plain = false
			chat = append(chat, imagePart(part))
		case "input_file":
			plain = false
			chat = append(chat, filePart(part))
		default:
			chat = append(chat, `{"type":"text","text":"`+strings.Join(textsOf(gjson.Parse("["+part.Raw+"]")), "")+`"}`)
		}
		return true
	})
	if plain {
		return `"` + strings.Join(textsOf(parts), `\n`) + `"`
	}
	return "[" + strings.Join(chat, ",") + "]"
}

func filePart(part gjson.Result) string {
	b := `{"type":"file","file":{`
	for _, name := range []string{"filename", "file_data", "file_url"} {
		if v := part.Get(name); v.Exists() {
			b += `"` + name + `":` + v.Raw + `,`
		}
	}
	return strings.TrimSuffix(b, ",") + `}}`
}
