package responses

import (
	"slices"

	"github.com/tidwall/gjson"

	"weir/tenants"
)

const minOutputTokens = 16

// readRest checks what is left: numbers and words that are echoed, which a
// client's decoder must be able to read.
func (c *Create) readRest() error {
	if err := c.readTier(); err != nil {
		return err
	}
	for _, n := range []struct {
		name     string
		min, max float64
		whole    bool
	}{
		{"temperature", 0, 2, false},
		{"top_p", 0, 1, false},
		{"presence_penalty", -2, 2, false},
		{"frequency_penalty", -2, 2, false},
		{"top_logprobs", 0, 20, true},
		{"max_output_tokens", minOutputTokens, 1 << 30, true},
	} {
		v := c.raw.Get(n.name)
		switch {
		case absent(v):
		case v.Type != gjson.Number || n.whole && v.Num != float64(int64(v.Num)):
			return wrongType(n.name, "a number")
		case v.Num < n.min:
			return problem(n.name, "integer_below_min_value", "Invalid '%s': expected at least %v.", n.name, n.min)
		case v.Num > n.max:
			return problem(n.name, "integer_above_max_value", "Invalid '%s': expected at most %v.", n.name, n.max)
		}
	}
	for _, w := range []struct {
		name  string
		words []string
	}{
		{"truncation", []string{"auto", "disabled"}},
		{"reasoning.effort", []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}},
		{"reasoning.summary", []string{"auto", "concise", "detailed"}},
		{"reasoning.context", []string{"auto", "current_turn", "all_turns"}},
		{"text.verbosity", []string{"low", "medium", "high"}},
	} {
		v := c.raw.Get(w.name)
		if !absent(v) && !slices.Contains(w.words, v.String()) {
			return problem(w.name, codeValue, "Invalid value for '%s': %q. Use one of %v.", w.name, clip(v.String()), w.words)
		}
	}
	if v := c.raw.Get("truncation"); v.String() == "auto" {
		c.Ignored = append(c.Ignored, "truncation") // nothing is ever cut in silence
	}
	return c.readMetadata()
}

func (c *Create) readTier() error {
	v := c.raw.Get("service_tier")
	if absent(v) {
		return nil
	}
	if c.Background { // which is a tier of its own
		c.Ignored = append(c.Ignored, "service_tier")
		return nil
	}
	switch v.String() {
	case "auto", "default":
		c.Tier = tenants.TierDefault
	case "flex":
		c.Tier = tenants.TierFlex
	case "priority", "fast", "ultrafast", "scale":
		c.Tier = tenants.TierPriority
	default:
		return problem("service_tier", codeValue, "Invalid value for 'service_tier': %q. Use auto, default, flex or priority.", clip(v.String()))
	}
	return nil
}

// readMetadata holds metadata to OpenAI's bounds.
func (c *Create) readMetadata() error { return checkMetadata(c.raw.Get("metadata")) }

func checkMetadata(v gjson.Result) error {
	if absent(v) {
		return nil
	}
	if !v.IsObject() {
		return wrongType("metadata", "an object")
	}
	n := 0
	var err error
	v.ForEach(func(key, value gjson.Result) bool {
		n++
		switch {
		case n > 16:
			err = problem("metadata", "object_above_max_properties", "Invalid 'metadata': at most 16 pairs are allowed.")
		case len(key.Str) > 64:
			err = problem("metadata", "string_above_max_length", "Invalid 'metadata': a key has at most 64 characters.")
		case value.Type != gjson.String:
			err = wrongType("metadata."+clip(key.Str), "a string")
		case len(value.Str) > 512:
			err = problem("metadata."+clip(key.Str), "string_above_max_length", "Invalid 'metadata': a value has at most 512 characters.")
		}
		return err == nil
	})
	return err
}
