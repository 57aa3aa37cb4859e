package pickerconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Supported is a table for people, in Markdown, of the plugin types that a
// document may name: made from what the parser does.
func Supported() string {
	var b strings.Builder
	b.WriteString("| type | as | parameters (default) |\n|---|---|---|\n")
	d := newDocument()
	for _, k := range kinds() {
		if k.role == builtIn {
			continue
		}
		var cell []string
		if k.params != nil {
			for _, p := range k.params(d, &plugin{kind: k}) {
				if strings.HasPrefix(p.name, "-") {
					continue
				}
				one := "`" + p.name + "`"
				if p.normal != "" {
					one += " (" + p.normal + ")"
				}
				cell = append(cell, one)
			}
		}
		if k.note != "" {
			cell = append(cell, k.note)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.name, k.role, strings.Join(cell, "; "))
	}
	b.WriteString("\nAccepted, because Weir does their work without being told:\n\n| type | |\n|---|---|\n")
	for _, k := range sortedBuiltIn() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.name, k.note)
	}
	b.WriteString("\nRefused:\n\n| type | instead |\n|---|---|\n")
	why := refused()
	for _, name := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, why[name])
	}
	return b.String()
}

func sortedBuiltIn() []*kind {
	return slices.SortedFunc(slices.Values(builtInKinds()), func(a, b *kind) int { return strings.Compare(a.name, b.name) })
}
