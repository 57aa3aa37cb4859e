package gateway

import (
	"bytes"

	"github.com/tidwall/gjson"

	"weir/billing"
)

// sglang is the engine kind that tells, where it is asked to, in which memory
// it found what of a prompt was cached.
const (
	sglang     = "sglang"
	askTiers   = `,"return_cached_tokens_details":true`
	sglextKey  = `"sglext":`
	tiersInExt = "sglext.cached_tokens_details"
)

// asksTiers reports whether the engines of an operation are asked for tiers.
// Other servers in such a pool pass over the member.
func (o Operation) asksTiers() bool { return o == Chat || o == Completions }

// tierCount is how much an engine found in which memory. The zero value is an
// engine that didn't say.
type tierCount struct {
	told                  bool
	device, host, storage int64
}

// noteTiers takes in what a chunk or an answer says of tiers, and reports
// whether it has SGLang's extension at all. Storage is absent where the engine
// has none; what isn't a count of tokens says nothing.
func (m *meter) noteTiers(p []byte) bool {
	if !bytes.Contains(p, []byte(sglextKey)) {
		return false
	}
	d := gjson.GetBytes(p, tiersInExt)
	device, host, storage := count(d.Get("device")), count(d.Get("host")), count(d.Get("storage"))
	if storage == nil && !d.Get("storage").Exists() {
		storage = new(int64)
	}
	if isTokens(device) && isTokens(host) && isTokens(storage) {
		m.tiers = tierCount{told: true, device: *device, host: *host, storage: *storage}
	}
	return true
}

func isTokens(n *int64) bool { return n != nil && *n >= 0 && *n <= billing.MaxTokens }

// cachedTiers are the parts of the engine's cached tokens. Where they don't sum up
// to them, they are those of something else (an engine counts the first prompt
// of several alone) or of nothing: then it is not known.
func (m *meter) cachedTiers(u billing.Usage, source billing.UsageSource) *billing.CacheTiers {
	t := m.tiers
	if !t.told || source != billing.UpstreamFinal && source != billing.UpstreamPartial || t.device+t.host+t.storage != u.InputCached {
		return nil
	}
	return &billing.CacheTiers{Host: t.host, Storage: t.storage}
}
