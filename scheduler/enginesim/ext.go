package enginesim

// ext is SGLang's own part of an answer. In a stream it comes in a chunk without
// choices, before the usage.
type ext struct {
	Cached cachedTiers `json:"cached_tokens_details"`
}

// cachedTiers has in which memory the cached tokens of a prompt were found.
type cachedTiers struct {
	Device  int    `json:"device"`
	Host    int    `json:"host"`
	Storage *int   `json:"storage,omitempty"` // nil: there is none
	Backend string `json:"storage_backend,omitempty"`
}

// ext is nil where nobody asked for it.
func (j *job) ext() *ext {
	if !j.tellTiers || j.fetched != nil {
		return nil
	}
	host, storage := 0, 0
	for i := 0; i < len(j.choices); i += len(j.choices) / j.prompts {
		lower := j.choices[i].seq.lower
		host, storage = host+lower.host*blockSize, storage+lower.storage*blockSize
	}
	x := &ext{cachedTiers{Device: j.cached() - host - storage, Host: host}}
	if j.storage {
		x.Cached.Storage, x.Cached.Backend = &storage, "file"
	}
	return x
}
