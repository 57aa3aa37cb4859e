package catalogue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Changes is what applying a document does, a line each: "+" is new, "-" is
// gone, "~" is changed, with the fields that differ.
type Changes []string

// String is the changes as a person reads them.
func (c Changes) String() string {
	if len(c) == 0 {
		return "no changes\n"
	}
	return strings.Join(c, "\n") + "\n"
}

// diff lists what makes the catalogue `old` into `fresh`, prices apart: those
// have versions, and the price book knows which are new.
func diff(old, fresh *Document) (Changes, error) {
	was, err := old.objects()
	if err != nil {
		return nil, err
	}
	is, err := fresh.objects()
	if err != nil {
		return nil, err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	var changes Changes
	for _, name := range slices.SortedFunc(maps.Keys(all), byKind) {
		before, existed := was[name]
		after, exists := is[name]
		switch {
		case !existed:
			changes = append(changes, "+ "+name)
		case !exists:
			changes = append(changes, "- "+name)
		default:
			if fields := differences(before, after); len(fields) > 0 {
				changes = append(changes, "~ "+name+": "+strings.Join(fields, ", "))
			}
		}
	}
	return changes, nil
}

// byKind sorts names such as "model x" in the order in which parts build on
// one another.
func byKind(a, b string) int {
	order := []string{"band", "plan", "pool", "model"}
	kind := func(s string) int {
		word, _, _ := strings.Cut(s, " ")
		return slices.Index(order, word)
	}
	return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a, b))
}

// objects is the document as "kind name" -> path of a field -> its value.
func (d *Document) objects() (map[string]map[string]string, error) {
	out := map[string]map[string]string{}
	put := func(kind, name string, v any) error {
		var n yaml.Node
		if err := n.Encode(v); err != nil {
			return fmt.Errorf("compare %s %s: %w", kind, name, err)
		}
		fields := map[string]string{}
		flatten("", &n, fields)
		out[kind+" "+name] = fields
		return nil
	}
	for _, b := range d.Bands {
		if err := put("band", b.Name, b); err != nil {
			return nil, err
		}
	}
	for name, p := range d.Plans {
		if err := put("plan", name, p); err != nil {
			return nil, err
		}
	}
	for _, p := range d.Pools {
		if err := put("pool", p.Name, p); err != nil {
			return nil, err
		}
	}
	for _, m := range d.Models {
		if err := put("model", m.Name, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// flatten puts the leaves under n into fields, by path. List items are named by
// their id, name, pool and so on, so that a new one is not a change of all that
// follow, and have an empty entry of their own. The order of routes counts, and
// that of plugins in a scheduler's document.
func flatten(path string, n *yaml.Node, fields map[string]string) {
	join := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			flatten(join(n.Content[i].Value), n.Content[i+1], fields)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := join(itemKey(item, i))
			fields[at] = ""
			if item.Kind != yaml.ScalarNode {
				flatten(at, item, fields)
			}
			if path == "routes" || strings.HasPrefix(path, "scheduler.") && path != "scheduler.flowControl.priorityBands" {
				fields[at+".position"] = strconv.Itoa(i + 1)
			}
		}
	default:
		fields[path] = n.Value
	}
}

func itemKey(item *yaml.Node, position int) string {
	if item.Kind == yaml.ScalarNode {
		return item.Value
	}
	for _, key := range []string{"id", "name", "pool", "type", "pluginRef", "priority"} {
		for i := 0; i+1 < len(item.Content); i += 2 {
			if item.Content[i].Value == key {
				return item.Content[i+1].Value
			}
		}
	}
	return strconv.Itoa(position)
}

// differences lists the fields that differ. An item that is new or gone is one
// difference, whatever it holds.
func differences(before, after map[string]string) []string {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var out []string
	whole := map[string]bool{} // items that are on one side only
	for _, path := range slices.Sorted(maps.Keys(all)) {
		b, had := before[path]
		a, has := after[path]
		if had && has && a == b || within(whole, path) {
			continue
		}
		switch {
		case had && has:
			out = append(out, fmt.Sprintf("%s %s -> %s", path, b, a))
		case has:
			out = append(out, strings.TrimSpace(fmt.Sprintf("+ %s %s", path, a)))
			whole[path] = a == ""
		default:
			out = append(out, strings.TrimSpace(fmt.Sprintf("- %s %s", path, b)))
			whole[path] = b == ""
		}
	}
	return out
}

// within reports whether path is inside one of the items.
func within(items map[string]bool, path string) bool {
	for i, r := range path {
		if r == '.' && items[path[:i]] {
			return true
		}
	}
	return false
}
