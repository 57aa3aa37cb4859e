package catalogue

import "time"

// Scaling says how many endpoints a pool should have, for whoever starts and
// stops them. Min and Max are those of each role. Zero takes the default.
type Scaling struct {
	Min                int           `yaml:"min,omitempty"`
	Max                int           `yaml:"max"`
	TargetQueuedTokens int           `yaml:"target_queued_tokens,omitempty"` // prompt tokens that may wait for each endpoint to be added; 32768
	TargetKVUsage      float64       `yaml:"target_kv_usage,omitempty"`      // 0.8
	TTFTSLO            time.Duration `yaml:"ttft_slo,omitempty"`             // aim for the 95th percentile of the time to first token; none
	ScaleDownAfter     time.Duration `yaml:"scale_down_after,omitempty"`     // 5m
	Roles              []string      `yaml:"roles,omitempty"`                // that are scaled apart; those of the endpoints
}

const (
	maxReplicas = 10_000
	maxRoles    = 16
)

func (s Scaling) validate(c *complaints, who string) {
	if s.Min < 0 || s.Max < 1 || s.Min > s.Max || s.Max > maxReplicas {
		c.add("%s: min %d, max %d: write 0 <= min <= max, max from 1 to %d", who, s.Min, s.Max, maxReplicas)
	}
	if s.TargetQueuedTokens < 0 || s.TTFTSLO < 0 || s.ScaleDownAfter < 0 {
		c.add("%s: targets and times can't be negative", who)
	}
	if s.TargetKVUsage < 0 || s.TargetKVUsage > 1 {
		c.add("%s: target_kv_usage is %v: write a part from 0 to 1", who, s.TargetKVUsage)
	}
	seen := map[string]bool{}
	for _, r := range s.Roles {
		c.name(who+": role", r, seen)
	}
	if len(s.Roles) > maxRoles {
		c.add("%s: %d roles: at most %d", who, len(s.Roles), maxRoles)
	}
}
