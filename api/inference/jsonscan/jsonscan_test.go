package jsonscan_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"weir/api/inference/jsonscan"
)

func scan(doc string) error {
	c := jsonscan.New([]byte(doc))
	c.Skip()
	c.End()
	return c.Err()
}

func reasonOf(err error) jsonscan.Reason {
	if e, ok := errors.AsType[*jsonscan.Error](err); ok {
		return e.Reason
	}
	return ""
}

func TestDocumentsAreAcceptedOrRefusedForAReason(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		doc  string
		want jsonscan.Reason
	}{
		{"an object", ` {"a" : [1, -2.5e+3, true, false, null, "x"] , "b":{}} `, ""},
		{"an empty array", "[]", ""},
		{"every short escape", `"\"\\\/\b\f\n\r\t"`, ""},
		{"a surrogate pair", `"\ud83d\ude00"`, ""},
		{"upper-case hexadecimal", `"\uD83D\uDE00\uABCD"`, ""},
		{"text beyond ASCII", `"日本語 ünïcode 😀"`, ""},
		{"the delete character", "\"\x7f\"", ""},
		{"nothing", "", jsonscan.Syntax},
		{"white space alone", " \n", jsonscan.Syntax},
		{"two documents", "{} {}", jsonscan.Syntax},
		{"a byte order mark", "\ufeff{}", jsonscan.Syntax},
		{"a trailing comma in an object", `{"a":1,}`, jsonscan.Syntax},
		{"a trailing comma in an array", `[1,]`, jsonscan.Syntax},
		{"a leading comma", `[,1]`, jsonscan.Syntax},
		{"a missing comma", `[1 2]`, jsonscan.Syntax},
		{"a missing colon", `{"a" 1}`, jsonscan.Syntax},
		{"a missing value", `{"a":}`, jsonscan.Syntax},
		{"a name without quotes", `{a:1}`, jsonscan.Syntax},
		{"the wrong bracket", `{"a":1]`, jsonscan.Syntax},
		{"an open object", `{"a":1`, jsonscan.Syntax},
		{"an open string", `"abc`, jsonscan.Syntax},
		{"an open string that ends in a backslash", `"abc\`, jsonscan.Syntax},
		{"an unknown escape", `"\x"`, jsonscan.Syntax},
		{"a short unicode escape", `"\u12"`, jsonscan.Syntax},
		{"a leading zero", "01", jsonscan.Syntax},
		{"a leading plus", "+1", jsonscan.Syntax},
		{"a bare minus", "-", jsonscan.Syntax},
		{"a point without digits", "1.", jsonscan.Syntax},
		{"an exponent without digits", "1e+", jsonscan.Syntax},
		{"NaN", "NaN", jsonscan.Syntax},
		{"a misspelt literal", "tru", jsonscan.Syntax},
		{"a literal with a tail", "nullx", jsonscan.Syntax},
		{"a comment", "{} // x", jsonscan.Syntax},
		{"a raw newline", "\"a\nb\"", jsonscan.ControlCharacter},
		{"a raw NUL", "\"a\x00b\"", jsonscan.ControlCharacter},
		{"an escaped NUL", `"a\u0000b"`, jsonscan.NULCharacter},
		{"an escaped NUL in a name", `{"a\u0000b":1}`, jsonscan.NULCharacter},
		{"a lone high surrogate", `"\ud83d"`, jsonscan.LoneSurrogate},
		{"a lone low surrogate", `"\ude00"`, jsonscan.LoneSurrogate},
		{"a high surrogate before text", `"\ud83dabcdef"`, jsonscan.LoneSurrogate},
		{"two high surrogates", `"\ud83d\ud83d"`, jsonscan.LoneSurrogate},
		{"broken UTF-8", "\"a\xff\"", jsonscan.InvalidUTF8},
		{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", jsonscan.InvalidUTF8},
		{"an overlong character", "\"\xc0\xaf\"", jsonscan.InvalidUTF8},
		{"a cut character", "\"\xe6\x97\"", jsonscan.InvalidUTF8},
		{"a long number", strings.Repeat("9", jsonscan.MaxNumber+1), jsonscan.LongNumber},
		{"the deepest nesting", strings.Repeat("[", jsonscan.MaxDepth) + strings.Repeat("]", jsonscan.MaxDepth), ""},
		{"deeper nesting", strings.Repeat("[", jsonscan.MaxDepth+1), jsonscan.TooDeep},
		{"endless nesting", strings.Repeat(`{"a":`, 1<<20), jsonscan.TooDeep},
		{"too many objects", "[" + strings.Repeat("{},", jsonscan.MaxNodes) + "{}]", jsonscan.TooManyNodes},
		{"many plain elements", "[" + strings.Repeat("1,", jsonscan.MaxNodes) + "1]", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := reasonOf(scan(tt.doc)); got != tt.want {
				t.Errorf("want %q, got %q", tt.want, got)
			}
		})
	}
}

// The scanner reads eight bytes at a time: what ends or breaks a string must be
// seen at every position.
func TestStringsEndAndBreakAtEveryAlignment(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		pad := strings.Repeat("p", n)
		for m := range 10 {
			tail := strings.Repeat("q", m)
			cases := map[string]jsonscan.Reason{
				`"` + pad + `"`:                       "",
				`"` + pad + `\n` + tail + `"`:         "",
				`"` + pad + `é` + tail + `"`:          "",
				`"` + pad + `\ud83d` + tail + `"`:     jsonscan.LoneSurrogate,
				`"` + pad + "\x1f" + tail + `"`:       jsonscan.ControlCharacter,
				`"` + pad + "\x80" + tail + `"`:       jsonscan.InvalidUTF8,
				`"` + pad + `\u0000` + tail + `"`:     jsonscan.NULCharacter,
				`"` + pad + `\` + `"` + tail:          jsonscan.Syntax,
				`["` + pad + `","` + tail + "\xff\"]": jsonscan.InvalidUTF8,
			}
			for doc, want := range cases {
				if got := reasonOf(scan(doc)); got != want {
					t.Fatalf("%q: want %q, got %q", doc, want, got)
				}
			}
		}
	}
}

func TestPathNamesTheValueAtAnOffset(t *testing.T) {
	t.Parallel()
	doc := `{"model":"m", "messages":[{"role":"user"},{"content":[ {"text":"X"} ,7]}], "n": Y}`
	tests := []struct{ mark, want string }{
		{`"m"`, "model"},
		{`{"role"`, "messages[0]"},
		{`"user"`, "messages[0].role"},
		{`"X"`, "messages[1].content[0].text"},
		{`7]`, "messages[1].content[1]"},
		{`"messages"`, "messages"},
		{`Y`, "n"},
		{`{"model`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			if got := jsonscan.Path([]byte(doc), strings.Index(doc, tt.mark)); got != tt.want {
				t.Errorf("want %q, got %q", tt.want, got)
			}
		})
	}
}

func TestPathIsBounded(t *testing.T) {
	t.Parallel()
	doc := strings.Repeat(`{"`+strings.Repeat("k", 1000)+`":`, 60) + "x"
	if got := jsonscan.Path([]byte(doc), len(doc)-1); len(got) > 256 {
		t.Errorf("a path of %d bytes", len(got))
	}
}

func TestWalkGivesSpansOfTheDocument(t *testing.T) {
	t.Parallel()
	doc := []byte(` { "a\u0062" : "x\ty" , "n":[ 1 ,22] }`)
	c := jsonscan.New(doc)
	var got []string
	for m := c.Object(); m.Next(); {
		name := string(m.Name())
		if c.Kind() == jsonscan.String {
			got = append(got, name+"="+string(c.Text()))
			continue
		}
		e := c.Array()
		for e.Next() {
			got = append(got, name+"="+string(c.Number()))
		}
		if e.N() != 2 {
			t.Errorf("want 2 elements, got %d", e.N())
		}
	}
	c.End()
	if want := `ab=x\ty n=1 n=22`; c.Err() != nil || strings.Join(got, " ") != want {
		t.Errorf("want %q, got %q (%v)", want, got, c.Err())
	}
	if got := string(jsonscan.Unquote([]byte(`x\ty\ud83d\ude00`))); got != "x\ty😀" {
		t.Errorf("unquoted: %q", got)
	}
}

// refusedByUs are the documents that encoding/json takes, or mends, and that
// we refuse on purpose.
func refusedByUs(err error) bool {
	switch reasonOf(err) {
	case jsonscan.InvalidUTF8, jsonscan.NULCharacter, jsonscan.LoneSurrogate,
		jsonscan.LongNumber, jsonscan.TooDeep, jsonscan.TooManyNodes:
		return true
	default:
		return false
	}
}

func FuzzScanAgreesWithOtherParsers(f *testing.F) {
	for _, doc := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi \u00e9 \ud83d\ude00"}],"n":1}`,
		`[1,-0.5e10,true,null,"\\\""]`, `{"a":{"b":[{},[],""]}}`, `"\ud800"`, "\"\xc3\x28\"", `{"a":1,"a":2}`, `[1,]`, `01`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := scan(string(doc))
		valid := json.Valid(doc)
		if err == nil && !valid {
			t.Fatalf("accepted, though not JSON: %q", doc)
		}
		if err == nil && !utf8.Valid(doc) {
			t.Fatalf("accepted, though not UTF-8: %q", doc)
		}
		if err != nil && valid && !refusedByUs(err) {
			t.Fatalf("refused valid JSON: %q: %v", doc, err)
		}
		_ = jsonscan.Path(doc, len(doc)/2)
		if err != nil {
			return
		}
		c := jsonscan.New(doc)
		if c.Kind() != jsonscan.Object {
			return
		}
		values := map[string]string{}
		for m := c.Object(); m.Next(); {
			name, from := string(m.Name()), c.Offset()
			c.Skip()
			if _, twice := values[name]; !twice {
				values[name] = string(c.Slice(from, c.Offset()))
			}
		}
		seen := map[string]bool{}
		gjson.ParseBytes(doc).ForEach(func(k, v gjson.Result) bool {
			if !seen[k.String()] && values[k.String()] != v.Raw {
				t.Errorf("member %q: want %q, got %q", k.String(), v.Raw, values[k.String()])
			}
			seen[k.String()] = true
			return true
		})
		if len(seen) != len(values) {
			t.Errorf("want %d members, got %d", len(seen), len(values))
		}
	})
}

func BenchmarkSkip(b *testing.B) {
	prose := strings.Repeat("It was the best of times, it was the worst of times. ", 4000)
	code := strings.Repeat(`func main() {\n\tfmt.Println(\"hello\", x)\n}\n`, 4600)
	cjk := strings.Repeat("それは最良の時代であり、それは最悪の時代でもあった。", 2700)
	for name, text := range map[string]string{"prose200KB": prose, "code200KB": code, "cjk200KB": cjk, "small": "hi"} {
		doc := []byte(`{"model":"m","messages":[{"role":"user","content":"` + text + `"}],"stream":true}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				c := jsonscan.New(doc)
				c.Skip()
				if c.End(); c.Err() != nil {
					b.Fatal(c.Err())
				}
			}
		})
	}
}
