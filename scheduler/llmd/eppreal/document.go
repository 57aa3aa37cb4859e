package eppreal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// document is the picker's configuration: as many requests as there are places,
// strict bands, and turns between the flows of each.
func (c *Config) document() string {
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	scorers := c.Scorers
	if len(scorers) == 0 {
		scorers = []string{"active-request-scorer"}
	}
	put("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:")
	put("- {type: concurrency-detector, parameters: {maxConcurrency: %d}}", max(c.Places, 1))
	for _, plugin := range append([]string{"round-robin-fairness-policy", "fcfs-ordering-policy", "max-score-picker"}, scorers...) {
		put("- type: %s", plugin)
	}
	if c.Reserve > 0 {
		put("- {type: priority-holdback-policy, name: holdback, parameters: {domain: rank, minCeiling: %v, maxCeiling: 1.0}}", 1-c.Reserve)
	}
	put("schedulingProfiles:\n- name: default\n  plugins:")
	for _, s := range scorers {
		put("  - {pluginRef: %s, weight: 1}", s)
	}
	put("  - {pluginRef: max-score-picker}")
	ttl := cmp.Or(c.TTL, 10*time.Minute)
	put("flowControl:\n  defaultRequestTTL: %s\n  noEndpointRequestTTL: %s", ttl, ttl)
	put("  saturationDetector: {pluginRef: concurrency-detector}\n  enableEviction: %t", c.Eviction)
	if c.Reserve > 0 {
		put("  usageLimitPolicyPluginRef: holdback")
	}
	if c.MaxQueued > 0 {
		put("  maxRequests: %q", fmt.Sprint(c.MaxQueued))
	}
	put("  priorityBands:")
	bands := map[int]bool{0: true}
	for _, p := range c.Objectives {
		bands[p] = true
	}
	for _, p := range slices.Sorted(maps.Keys(bands)) {
		limit := ""
		if c.MaxBandQueued > 0 {
			limit = fmt.Sprintf(", maxRequests: %q", fmt.Sprint(c.MaxBandQueued))
		}
		put("  - {priority: %d%s, fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef: fcfs-ordering-policy}", p, limit)
	}
	return b.String()
}
