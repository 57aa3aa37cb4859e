package responses

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// textMessage is a message of one text, which is a JSON string.
func textMessage(role, raw string) Item {
	it := Item{ID: newID(messagePrefix), Type: typeMessage}
	it.JSON = []byte(`{"id":"` + it.ID + `","type":"message","role":"` + role +
		`","status":"completed","content":[` + textPart(role, raw) + `]}`)
	return it
}

func textPart(role, raw string) string {
	if role == "assistant" {
		return `{"type":"output_text","text":` + raw + `,"annotations":[]}`
	}
	return `{"type":"input_text","text":` + raw + `}`
}

func parseMessage(param string, v gjson.Result) (Item, error) {
	role := v.Get("role")
	switch {
	case role.Type != gjson.String:
		return Item{}, textWanted(param+".role", role)
	case role.Str != "user" && role.Str != "assistant" && role.Str != "system" && role.Str != "developer":
		return Item{}, problem(param+".role", codeValue, "Invalid value for '%s.role': %q. Use user, assistant, system or developer.", param, clip(role.Str))
	}
	it := begin(v, messagePrefix, typeMessage)
	b := member(it.JSON, "role", role.Raw)
	b = member(b, "status", statusOf(v))
	if phase := v.Get("phase"); phase.Type == gjson.String {
		b = member(b, "phase", phase.Raw)
	}
	content := v.Get("content")
	switch {
	case content.Type == gjson.String:
		b = member(b, "content", "["+textPart(role.Str, content.Raw)+"]")
	case content.IsArray():
		parts, err := parseParts(param+".content", content, role.Str)
		if err != nil {
			return Item{}, err
		}
		b = member(b, "content", string(parts))
	case absent(content) && role.Str == "assistant":
		b = member(b, "content", "[]") // a turn of calls alone, as Chat clients write it
	case absent(content):
		return Item{}, missing(param + ".content")
	default:
		return Item{}, wrongType(param+".content", "a string or an array of parts")
	}
	it.JSON = end(b)
	return it, nil
}

// parseParts returns the canonical parts of a message, or of a tool's output.
func parseParts(param string, v gjson.Result, role string) ([]byte, error) {
	b := []byte{'['}
	var err error
	n := 0
	v.ForEach(func(_, part gjson.Result) bool {
		var p string
		if p, err = parsePart(fmt.Sprintf("%s[%d]", param, n), part, role); err != nil {
			return false
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		b = append(b, p...)
		return true
	})
	return append(b, ']'), err
}

func parsePart(param string, v gjson.Result, role string) (string, error) {
	if !v.IsObject() {
		return "", wrongType(param, "an object")
	}
	switch kind := v.Get("type"); kind.String() {
	case "input_text", "output_text", "text", "summary_text", "reasoning_text":
		text := v.Get("text")
		if text.Type != gjson.String {
			return "", textWanted(param+".text", text)
		}
		return textPart(role, text.Raw), nil
	case "refusal":
		text := v.Get("refusal")
		if text.Type != gjson.String {
			return "", textWanted(param+".refusal", text)
		}
		return `{"type":"refusal","refusal":` + text.Raw + `}`, nil
	case "input_image":
		return parseImage(param, v)
	case "input_file":
		return parseFile(param, v)
	case "":
		return "", missing(param + ".type")
	default:
		return "", problem(param+".type", codeValue, "Invalid value for '%s.type': %q is no type of content that is taken here.", param, clip(kind.String()))
	}
}

func parseImage(param string, v gjson.Result) (string, error) {
	if id := v.Get("file_id"); !absent(id) {
		return "", problem(param+".file_id", codeUnsupported, "There are no stored files: give the image as a data URL in 'image_url'.")
	}
	url := v.Get("image_url")
	if url.IsObject() {
		url = url.Get("url") // the Chat form
	}
	if url.Type != gjson.String {
		return "", textWanted(param+".image_url", url)
	}
	part := `{"type":"input_image","image_url":` + url.Raw
	switch detail := v.Get("detail").String(); detail {
	case "":
		part += `,"detail":"auto"`
	case "auto", "low", "high", "original":
		part += `,"detail":"` + detail + `"`
	default:
		return "", problem(param+".detail", codeValue, "Invalid value for '%s.detail': use auto, low, high or original.", param)
	}
	return part + `}`, nil
}

func parseFile(param string, v gjson.Result) (string, error) {
	if id := v.Get("file_id"); !absent(id) {
		return "", problem(param+".file_id", codeUnsupported, "There are no stored files: give the content as a data URL in 'file_data'.")
	}
	var b strings.Builder
	b.WriteString(`{"type":"input_file"`)
	source := ""
	for _, name := range []string{"filename", "file_data", "file_url"} {
		x := v.Get(name)
		if absent(x) {
			continue
		}
		if x.Type != gjson.String {
			return "", wrongType(param+"."+name, "a string")
		}
		if name != "filename" {
			source = name
		}
		b.WriteString(`,"` + name + `":` + x.Raw)
	}
	if source == "" {
		return "", missing(param + ".file_data")
	}
	return b.String() + `}`, nil
}
