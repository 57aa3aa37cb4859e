package catalogue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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

// flatten names list items by their id, name or pool, so that a moved item is
// not a change of all that follow.
func flatten(path string, n *yaml.Node, into map[string]string) {
	join := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			flatten(join(n.Content[i].Value), n.Content[i+1], into)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			flatten(join(itemKey(item, i)), item, into)
		}
	default:
		into[path] = n.Value
	}
}

func itemKey(item *yaml.Node, position int) string {
	if item.Kind == yaml.ScalarNode {
		return item.Value
	}
	for i := 0; i+1 < len(item.Content); i += 2 {
		if slices.Contains([]string{"id", "name", "pool"}, item.Content[i].Value) {
			return item.Content[i+1].Value
		}
	}
	return fmt.Sprint(position)
}

func differences(before, after map[string]string) []string {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var out []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		b, had := before[path]
		a, has := after[path]
		switch {
		case had && has && a != b:
			out = append(out, fmt.Sprintf("%s %s -> %s", path, b, a))
		case !had:
			out = append(out, fmt.Sprintf("%s + %s", path, a))
		case !has:
			out = append(out, fmt.Sprintf("%s - %s", path, b))
		}
	}
	return out
}
