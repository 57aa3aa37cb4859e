package admission

import "strings"

// group is the limited nodes of one call and the hash tag that keeps their keys
// on one node of a Redis cluster: the id of the tenant, limited or not.
type group struct {
	tag     string
	nodes   []Node
	charged bool            // Redis has charged the request; else this replica has
	by      [][meters]int64 // at release, by node: what the meters change by
}

func groupOf(nodes []Node) (group, error) {
	bound, err := limited(nodes)
	if err != nil || len(bound) == 0 {
		return group{}, err
	}
	g := group{tag: bound[0].ID, nodes: bound}
	for i := range nodes {
		if strings.HasPrefix(nodes[i].ID, "ten_") {
			g.tag = nodes[i].ID
		}
	}
	return g, nil
}

// corrected is the group with what a release tells Redis: nothing of tokens
// that it has not charged.
func (g group) corrected(estimate, used Counts) group {
	g.by = make([][meters]int64, len(g.nodes))
	if g.charged {
		for i := range g.nodes {
			g.by[i] = g.nodes[i].corrections(estimate, used)
		}
	}
	return g
}

// keys are those of the scripts.
func (g group) keys() []string {
	keys := make([]string, 0, 2*len(g.nodes))
	for i := range g.nodes {
		keys = append(keys, "weir:{"+g.tag+"}:rates:"+g.nodes[i].ID, g.liveKey(g.nodes[i]))
	}
	return keys
}

func (g group) liveKey(n Node) string { return "weir:{" + g.tag + "}:live:" + n.ID }

func (g group) releaseArgs(requestID string) []any {
	args := make([]any, 0, 1+meters*len(g.nodes))
	args = append(args, requestID)
	for _, by := range g.by {
		for _, n := range by {
			args = append(args, n)
		}
	}
	return args
}
