package pickerconfig

import (
	"cmp"
	"slices"
	"strings"

	"weir/scheduler"
)

const splitHandler = "disagg-profile-handler"

// splitting is what a disagg-profile-handler says: which profiles there are for
// the stages, and who decides on prefill.
type splitting struct {
	decode, prefill, encode string
	decider                 ref
}

func splitKinds() []*kind {
	return []*kind{
		{name: splitHandler, role: handler, params: disagg, note: "first the profile decode, then, if the decider wants it, the profile prefill; filters by label in them say who serves which stage"},
		{name: string(scheduler.PrefixDecider), role: decider, params: prefixDecider},
		{name: string(scheduler.AlwaysDecider), role: decider, params: func(_ *document, p *plugin) []param {
			p.decider = scheduler.Decider{Kind: scheduler.AlwaysDecider}
			return nil
		}},
		{name: rolloutScreener, role: screener, params: rollout, note: "a session keeps its revision as far as the shares allow; where the revision that was drawn is full, another takes the request"},
	}
}

func disagg(d *document, p *plugin) []param {
	p.split = splitting{decode: "decode", prefill: "prefill", encode: "encode"}
	s := &p.split
	old := func(read func(at), now string) func(at) {
		return func(a at) {
			d.warn(a, "is old: write %s", now)
			read(a)
		}
	}
	noEncode := func(a at) {
		d.fail(a, "is not supported: what is in a message besides text is encoded where its prompt is computed")
	}
	var order string
	return []param{
		{"profiles", "`decode: decode`, `prefill: prefill`", func(a at) {
			d.object(a, field{"decode", d.text(&s.decode)}, field{"prefill", d.text(&s.prefill)}, field{"encode", d.text(&s.encode)})
		}},
		{"deciders", "of its `prefill`; without one prompts are computed where the answer is made", func(a at) {
			d.object(a, field{"prefill", d.nameRef(&s.decider)}, field{"-encode", noEncode})
		}},
		{"stageOrder", "decode-first; no other", func(a at) {
			d.text(&order)(a)
			switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(order)) {
			case "", "decodefirst", "decode":
			default:
				d.fail(a, "is %.60q: only decode-first is supported: how much of a prompt is cached, and so whether it goes apart, is known of who answers", order)
			}
		}},
		{"-decodeProfile", "", old(d.text(&s.decode), "profiles.decode")},
		{"-prefillProfile", "", old(d.text(&s.prefill), "profiles.prefill")},
		{"-encodeProfile", "", old(d.text(&s.encode), "profiles.encode")},
		{"-prefillDeciderPluginName", "", old(d.nameRef(&s.decider), "deciders.prefill")},
		{"-deciderPluginName", "", old(d.nameRef(&s.decider), "deciders.prefill")},
		{"-encodeDeciderPluginName", "", noEncode},
	}
}

func prefixDecider(d *document, p *plugin) []param {
	p.decider = scheduler.Decider{Kind: scheduler.PrefixDecider}
	return []param{
		{"nonCachedTokens", "0: never", d.whole(&p.decider.NonCachedTokens, 0)},
		{"promptTokens", "0: no bound", d.whole(&p.decider.PromptTokens, 0)},
	}
}

// stages are the profiles that are run: the one that picks who answers, and,
// where the document has a handler for it, who computes the prompt and the
// decider on that.
func (d *document) stages() (answer, prefill *profile, decides *plugin) {
	h := d.first(splitHandler)
	if h == nil {
		if len(d.profiles) > 1 {
			d.fail(d.profiles[1].at, "is a second profile: that needs a %s, which says what it is for", splitHandler)
		}
		return &d.profiles[0], nil, nil
	}
	h.used = true
	s := &h.split
	for i := range d.profiles {
		switch p := &d.profiles[i]; p.name {
		case s.decode:
			answer = p
		case s.prefill:
			prefill = p
		case s.encode:
			d.warn(p.at, "has no effect: nothing is encoded apart")
		default:
			d.fail(p.at, "is neither %q nor %q: %s runs no other profile", s.decode, s.prefill, h.name)
		}
	}
	switch {
	case answer == nil:
		d.fail(h.at, "schedulingProfiles lacks %q, which picks the endpoints that answer", s.decode)
		return &profile{at: d.root, name: s.decode}, nil, nil
	case s.decider.name == "":
		if prefill != nil {
			d.warn(prefill.at, "is never run: %s has no deciders.prefill", h.name)
		}
		return answer, nil, nil
	case prefill == nil:
		d.fail(s.decider.at, "schedulingProfiles lacks %q, which picks the endpoints that compute prompts", s.prefill)
		return answer, nil, nil
	}
	return answer, prefill, d.byName[s.decider.name]
}

const (
	rolloutScreener = "disaggregatedset-rollout-screener"
	rolloutRole     = "disaggregatedset.x-k8s.io/role"
)

func rollout(d *document, p *plugin) []param {
	p.rollout = scheduler.Rollout{}
	r := &p.rollout
	return []param{
		{"scope", "must be given: its `labelSelector`, of equalities", func(a at) {
			d.object(a, field{"labelSelector", d.equalities(&r.Scope)})
		}},
		{"revisionGating", "must be given", func(a at) { d.gating(a, r) }},
		{"headerSelectors", "mode strict on the revision's label: for who calls `weir scheduler`, never for clients; no effect otherwise", d.list(func(a at) { d.headerSelector(a, p) })},
	}
}

// gating reads by what a revision's share goes. What is required there is
// required here.
func (d *document) gating(a at, r *scheduler.Rollout) {
	there := d.object(a,
		field{"mode", choice(d.reader, &r.Mode, scheduler.RolloutByLargestRole, scheduler.RolloutBySum, scheduler.RolloutDisabled)},
		field{"requireRoles", func(a at) { d.object(a, field{"values", d.texts(&r.Roles)}) }},
		field{"revisionLabelKey", d.text(&r.RevisionLabel)},
		field{"roleLabelKey", d.text(&r.RoleLabel)},
	)
	switch {
	case there == nil:
	case r.Mode == "":
		d.fail(a, "mode is missing: write max-role, sum or disabled")
	case r.Mode != scheduler.RolloutDisabled && len(r.Roles) == 0:
		d.fail(a, "requireRoles.values is missing: write the roles without which a revision can't serve")
	}
}

// equalities reads a selector such as a=b,c=d.
func (d *document) equalities(to *map[string]string) func(at) {
	return func(a at) {
		var text string
		d.text(&text)(a)
		*to = map[string]string{}
		for part := range strings.SplitSeq(text, ",") {
			label, value, ok := strings.Cut(strings.Replace(part, "==", "=", 1), "=")
			label, value = strings.TrimSpace(label), strings.TrimSpace(value)
			if !ok || label == "" || strings.ContainsAny(label+value, "!=() ") {
				d.fail(a, "is %.60q: want label=value, several with commas between", text)
				return
			}
			(*to)[label] = value
		}
	}
}

func (d *document) headerSelector(a at, p *plugin) {
	var name, header, label, mode string
	d.object(a,
		field{"name", d.text(&name)}, field{"headerName", d.text(&header)},
		field{"labelKey", d.text(&label)}, field{"mode", choice(d.reader, &mode, "strict", "prefer")},
	)
	switch {
	case mode == "prefer":
		d.warn(a, "has no effect: no scorer reads a header")
	case label != cmp.Or(p.rollout.RevisionLabel, scheduler.RevisionLabel):
		d.fail(a, "is strict on %.60q: only a revision can be asked for", label)
	case !strings.EqualFold(header, "x-disagg-revision"):
		d.fail(a, "headerName is %.60q: the revision is asked for in x-disagg-revision", header)
	}
}

// screen is the document's rollout.
func (d *document) screen() scheduler.Rollout {
	p := d.first(rolloutScreener)
	if p == nil {
		return scheduler.Rollout{}
	}
	p.used = true
	r := p.rollout
	switch {
	case r.Mode == "":
		d.fail(p.at, "revisionGating is missing")
	case len(r.Scope) == 0:
		d.fail(p.at, "scope.labelSelector is missing: it says which endpoints belong to the rollout")
	case slices.Contains(r.Roles, ""):
		d.fail(p.at, "revisionGating.requireRoles.values has an empty role")
	}
	r.RoleLabel = cmp.Or(r.RoleLabel, rolloutRole)
	return r
}
