package admission

// group is what this replica holds of one request: the nodes that have limits,
// and where its charge and its intent are.
type group struct {
	tenant string
	nodes  []Node
	// local are the nodes as this replica has charged them, its share of their
	// limits; nil: Redis has charged the request.
	local     []Node
	lent      int             // where local is set: as which of the arrears it was noted
	by        [][meters]int64 // at release, by node: what the meters change by in Redis
	intent    *Intent
	journaled bool // the intent is in this replica's journal
}

func groupOf(r *Request) (group, error) {
	bound, err := limited(r.Nodes)
	return group{tenant: r.Tenant, nodes: bound, intent: r.Intent}, err
}

// empty reports whether there is nothing to ask or to keep.
func (g *group) empty() bool { return len(g.nodes) == 0 && g.intent == nil }

// corrected is the group with what a release tells Redis of tokens.
func (g group) corrected(estimate, used Counts) group {
	g.by = make([][meters]int64, len(g.nodes))
	for i := range g.nodes {
		g.by[i] = g.nodes[i].corrections(estimate, used)
	}
	return g
}

// ended is the group of a request whose release is told apart: it only leaves
// the live sets. Its intent went with the release, or is meant to stay.
func (g group) ended() group {
	g.intent, g.by = nil, make([][meters]int64, len(g.nodes))
	return g
}

// keys are those of the scripts: two for each node, then that of the intents if
// the request has one. The braces keep a tenant's on one node of a cluster.
func (g *group) keys() []string {
	keys := make([]string, 0, 2*len(g.nodes)+1)
	for i := range g.nodes {
		keys = append(keys, ratesKey(g.tenant, g.nodes[i].ID), g.liveKey(&g.nodes[i]))
	}
	if g.intent != nil {
		keys = append(keys, intentsKey(g.tenant, g.intent.Replica))
	}
	return keys
}

func ratesKey(tenant, node string) string { return "weir:{" + tenant + "}:spent:" + node }

func (g *group) liveKey(n *Node) string { return "weir:{" + g.tenant + "}:live:" + n.ID }

func (g *group) releaseArgs(requestID string) []any {
	args := make([]any, 0, 1+meters*len(g.nodes))
	args = append(args, requestID)
	for _, by := range g.by {
		for _, n := range by {
			args = append(args, n)
		}
	}
	return args
}
