package responses

import (
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// JSON is appended by hand where it is made for every event, and where a
// caller's own bytes are to stay as they are. A text that came as JSON stays
// escaped: two texts are joined by joining what stands between their quotes.

// begin opens the JSON of an item that has a caller's id or a new one.
func begin(v gjson.Result, prefix, kind string) Item {
	id := idOf(v, prefix)
	b := make([]byte, 0, len(v.Raw)+96)
	b = append(append(append(b, `{"id":"`...), id...), `","type":"`...)
	b = append(append(b, kind...), '"')
	return Item{ID: id, Type: kind, JSON: b}
}

// member adds one to an object that has some.
func member(b []byte, name, raw string) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	return append(b, raw...)
}

func end(b []byte) []byte { return append(b, '}') }

// quote is s as a JSON string.
func quote(s string) string { return string(gjson.AppendJSONString(nil, s)) }

// inner is what stands between the quotes of a JSON string.
func inner(raw string) string {
	if len(raw) < 2 {
		return ""
	}
	return raw[1 : len(raw)-1]
}

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// blank reports that an escaped text is white space alone.
func blank(escaped string) bool {
	for i := 0; i < len(escaped); i++ {
		switch escaped[i] {
		case ' ':
		case '\\':
			if i++; i >= len(escaped) || (escaped[i] != 'n' && escaped[i] != 't' && escaped[i] != 'r') {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// members are those of an object, found in one pass: to look for each of them
// in turn would read a long input as often.
type members map[string]gjson.Result

func membersOf(v gjson.Result) members {
	m := members{}
	v.ForEach(func(key, value gjson.Result) bool {
		m[key.Str] = value
		return true
	})
	return m
}

// Get finds a member, or with a dot a member of one.
func (m members) Get(path string) gjson.Result {
	name, rest, deep := strings.Cut(path, ".")
	if deep {
		return m[name].Get(rest)
	}
	return m[name]
}
