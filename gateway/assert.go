package gateway

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// asserted are the members of an engine's request that nobody but us decides:
// what is served, whose prefix cache it may meet, how it comes back, and what
// limits and money rest on.
func asserted(name string) bool {
	switch name {
	case "model", "cache_salt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of":
		return true
	default:
		return false
	}
}

// assert is the body that a shared scheduler gave back, with our own values in
// the asserted members and without those that we don't set, however they are
// spelled and however often they are there. What is no JSON object is replaced
// by our own body.
func assert(ours, theirs []byte) []byte {
	if bytes.Equal(ours, theirs) || !gjson.ValidBytes(theirs) {
		return ours
	}
	given, own := gjson.ParseBytes(theirs), gjson.ParseBytes(ours)
	if !given.IsObject() || !own.IsObject() {
		return ours
	}
	out := append(make([]byte, 0, len(theirs)+256), '{')
	take := func(want bool) func(key, value gjson.Result) bool {
		return func(key, value gjson.Result) bool {
			if asserted(key.Str) != want {
				return true
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(append(out, key.Raw...), ':'), value.Raw...)
			return true
		}
	}
	own.ForEach(take(true))
	given.ForEach(take(false))
	return append(out, '}')
}
