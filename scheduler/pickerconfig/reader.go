package pickerconfig

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxItems bounds every list of a document.
const maxItems = 256

// reader walks a document and gathers all that is wrong with it, so that one
// run tells everything. Places are named by their line and by their path.
type reader struct {
	errs     []error
	warnings []string
}

// at is one place in a document.
type at struct {
	path string
	node *yaml.Node
}

// line begins a complaint. A node that was not read from text has no line.
func (a at) line() string {
	s := ""
	if a.node != nil && a.node.Line > 0 {
		s = fmt.Sprintf("line %d: ", a.node.Line)
	}
	if a.path != "" {
		s += a.path + ": "
	}
	return s
}

func (r *reader) fail(a at, format string, args ...any) {
	r.errs = append(r.errs, errors.New(a.line()+fmt.Sprintf(format, args...)))
}

func (r *reader) warn(a at, format string, args ...any) {
	r.warnings = append(r.warnings, a.line()+fmt.Sprintf(format, args...))
}

// field is a member that an object may have. One whose name begins with "-" is
// known only to be refused, or from old documents: it is not recommended.
type field struct {
	name string
	read func(at)
}

// object reads a mapping. A member that is null counts as absent, as in JSON
// documents for Kubernetes; an unknown one is a complaint that lists the known.
// It returns the places of the members that were there.
func (r *reader) object(a at, fields ...field) map[string]at {
	a.node = resolve(a.node)
	if a.node.Kind != yaml.MappingNode {
		r.fail(a, "want a mapping, got %s", describe(a.node))
		return nil
	}
	there := make(map[string]at, len(fields))
	for i := 0; i+1 < len(a.node.Content); i += 2 {
		key, value := a.node.Content[i], resolve(a.node.Content[i+1])
		member := at{path: join(a.path, key.Value), node: value}
		at := slices.IndexFunc(fields, func(f field) bool { return strings.TrimPrefix(f.name, "-") == key.Value })
		switch {
		case at < 0:
			r.fail(withNode(a, key), "unknown field %q; supported: %s", key.Value, names(fields))
			continue
		case there[key.Value].node != nil:
			r.fail(withNode(a, key), "%q is there twice", key.Value)
			continue
		case value.ShortTag() == "!!null":
			continue
		}
		there[key.Value] = member
		fields[at].read(member)
	}
	return there
}

func withNode(a at, n *yaml.Node) at { return at{path: a.path, node: n} }

func names(fields []field) string {
	all := make([]string, 0, len(fields))
	for _, f := range fields {
		if !strings.HasPrefix(f.name, "-") {
			all = append(all, f.name)
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// resolve follows an alias. The parser refuses an alias within its own anchor's
// scalar; a cyclic one ends here, because no field of a document nests itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%.60q", n.Value)
	}
}

// list reads each item of a sequence.
func (r *reader) list(each func(at)) func(at) {
	return func(a at) {
		if a.node.Kind != yaml.SequenceNode {
			r.fail(a, "want a list, got %s", describe(a.node))
			return
		}
		if len(a.node.Content) > maxItems {
			r.fail(a, "%d items: at most %d", len(a.node.Content), maxItems)
			return
		}
		for i, item := range a.node.Content {
			each(at{path: fmt.Sprintf("%s[%d]", a.path, i), node: resolve(item)})
		}
	}
}

// scalar checks that the place holds a value of one of the YAML types.
func (r *reader) scalar(a at, want string, tags ...string) bool {
	if a.node.Kind != yaml.ScalarNode || !slices.Contains(tags, a.node.ShortTag()) {
		r.fail(a, "want %s, got %s", want, describe(a.node))
		return false
	}
	return true
}

func (r *reader) text(to *string) func(at) {
	return func(a at) {
		if r.scalar(a, "a text", "!!str") {
			*to = a.node.Value
		}
	}
}

func (r *reader) boolean(to *bool) func(at) {
	return func(a at) {
		if r.scalar(a, "true or false", "!!bool") {
			r.decode(a, to)
		}
	}
}

// whole reads a whole number of at least low.
func (r *reader) whole(to *int, low int) func(at) {
	return func(a at) {
		var n int
		if !r.scalar(a, "a whole number", "!!int") || !r.decode(a, &n) {
			return
		}
		if n < low || n > math.MaxInt32 {
			r.fail(a, "is %d: at least %d, at most %d", n, low, math.MaxInt32)
			return
		}
		*to = n
	}
}

// number reads a number in [low, high].
func (r *reader) number(to *float64, low, high float64) func(at) {
	return func(a at) {
		var n float64
		if !r.scalar(a, "a number", "!!int", "!!float") || !r.decode(a, &n) {
			return
		}
		if math.IsNaN(n) || n < low || n > high {
			r.fail(a, "is %v: at least %v, at most %v", n, low, high)
			return
		}
		*to = n
	}
}

func (r *reader) decode(a at, to any) bool {
	if err := a.node.Decode(to); err != nil {
		r.fail(a, "%q is not a value of its type", a.node.Value)
		return false
	}
	return true
}

// duration reads a Go duration such as "1500ms", of at least low.
func (r *reader) duration(to *time.Duration, low time.Duration) func(at) {
	return func(a at) {
		if !r.scalar(a, `a duration such as "30s"`, "!!str") {
			return
		}
		d, err := time.ParseDuration(a.node.Value)
		if err != nil || d < low || d > forever {
			r.fail(a, `is %.60q: want a duration such as "30s", at least %s`, a.node.Value, low)
			return
		}
		*to = d
	}
}

// seconds reads a number of seconds.
func (r *reader) seconds(to *time.Duration) func(at) {
	return func(a at) {
		var n float64
		before := len(r.errs)
		r.number(&n, 0, forever.Seconds())(a)
		if len(r.errs) == before {
			*to = time.Duration(n * float64(time.Second))
		}
	}
}

// quantity reads a Kubernetes quantity, given as a text or a number.
func (r *reader) quantity(to *int64) func(at) {
	return func(a at) {
		if !r.scalar(a, `a quantity such as "500" or "2Gi"`, "!!str", "!!int", "!!float") {
			return
		}
		n, err := quantity(a.node.Value)
		if err != nil {
			r.fail(a, "%v", err)
			return
		}
		*to = n
	}
}

// choice reads one of the allowed words.
func choice[T ~string](r *reader, to *T, allowed ...T) func(at) {
	return func(a at) {
		words := make([]string, len(allowed))
		for i, w := range allowed {
			words[i] = string(w)
		}
		want := strings.Join(words, " or ")
		switch {
		case !r.scalar(a, want, "!!str"):
		case !slices.Contains(words, a.node.Value):
			r.fail(a, "is %.60q: want %s", a.node.Value, want)
		default:
			*to = T(a.node.Value)
		}
	}
}
