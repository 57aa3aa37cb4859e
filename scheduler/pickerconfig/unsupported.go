package pickerconfig

// builtInKinds are the types whose work Weir does without being told. Where a
// user might expect more of one, its note is a warning.
func builtInKinds() []*kind {
	const records = "has no effect: flows and sessions come from Weir's own records, never from what a client sends"
	var all []*kind
	for name, note := range map[string]string{ //nolint:gosec // names of plugins, no secrets
		"single-profile-handler":                   "",
		"disagg-headers-handler":                   "",
		"prefill-header-handler":                   "",
		"openai-parser":                            "",
		"anthropic-parser":                         "",
		"vllmhttp-parser":                          "",
		"sglanghttp-parser":                        "",
		"passthrough-parser":                       "",
		"metrics-data-source":                      "",
		"core-metrics-extractor":                   "",
		"endpoint-notification-source":             "",
		"file-discovery":                           "has no effect: the pool's own endpoints are used",
		"agent-identity":                           records,
		"session-id-producer":                      records,
		"tokenizer":                                "has no effect: write token-producer",
		"models-responder":                         "has no effect: Weir lists models from its own catalogue",
		"request-attribute-reporter":               "has no effect: receipts and metrics report requests",
		"sheddable-eviction-filter":                "has no effect: enableEviction always takes from negative priorities only",
		"priority-then-time-eviction-order-policy": "has no effect: enableEviction always takes the lowest priority, then the newest",
	} {
		all = append(all, &kind{name: name, role: builtIn, auto: true, note: note})
	}
	return all
}

// refused says of llm-d's other types why Weir doesn't have them and what
// serves instead.
func refused() map[string]string {
	const (
		encode   = "what is in a message besides text is encoded where its prompt is computed"
		apart    = "write disagg-profile-handler"
		engines  = "the pool says of each endpoint which engine it is"
		latency  = "there is no latency predictor; weir-work-scorer rates endpoints by the work before them"
		adapters = "a model has its own pool: route to it in the catalogue"
		clusters = "a pool is in one place; a model's routes lead to pools in several"
		labels   = "use label-selector-filter"
		load     = "use concurrency-detector or utilization-detector as filter"
	)
	return map[string]string{
		"pd-profile-handler":                        apart,
		"always-disagg-multimodal-decider":          encode,
		"p2p-source-producer":                       "engines fetch caches from each other by themselves",
		"data-parallel-profile-handler":             "say of each endpoint how many `ranks` it has",
		"header-profile-handler":                    "what a client sends doesn't choose how it is scheduled; use models and routes",
		"header-label-affinity-scorer":              "what a client sends doesn't choose how it is scheduled; use models and routes",
		"lora-affinity-scorer":                      adapters,
		"latency-scorer":                            latency,
		"predicted-latency-producer":                latency,
		"slo-headroom-tier-filter":                  latency,
		"latency-slo-admitter":                      latency,
		"precise-prefix-cache-scorer":               "use precise-prefix-cache-producer and prefix-cache-scorer",
		"burst-prefix-cache-producer":               "approx-prefix-cache-producer counts a prefix from its dispatch on, bursts included",
		"mm-embeddings-cache-scorer":                "prefix-cache-scorer covers images by the bytes of their parts",
		"mm-embeddings-cache-producer":              "prefix-cache-scorer covers images by the bytes of their parts",
		"utilization-filter":                        load,
		"endpoint-attribute-filter":                 labels + ", or " + load,
		"endpoint-attribute-scorer":                 "no custom metrics are scraped; use the scorers of load",
		"topology-affinity-filter":                  labels,
		"topology-affinity-scorer":                  labels,
		"topology-extractor":                        labels,
		"models-data-source":                        adapters,
		"models-data-extractor":                     adapters,
		"dcgm-data-source":                          engines,
		"dcgm-extractor":                            engines,
		"k8s-notification-source":                   "endpoints are those of the pool; nothing is read from Kubernetes",
		"vllmgrpc-parser":                           "engines are spoken to by HTTP",
		"vertexai-parser":                           "clients speak OpenAI's API",
		"redis-state-store":                         "replicas of the gateway don't share the state of a pool",
		"redis-syncer":                              "replicas of the gateway don't share the state of a pool",
		"local-syncer":                              "replicas of the gateway don't share the state of a pool",
		"session-state-producer":                    "sessions are Weir's own; weir-token-fairness-policy orders them by turn",
		"session-manager":                           "sessions are Weir's own; weir-token-fairness-policy orders them by turn",
		"multicluster-file-discovery":               clusters,
		"multicluster-session-affinity-filter":      clusters,
		"multicluster-queue-scorer":                 clusters,
		"multicluster-kv-cache-utilization-scorer":  clusters,
		"multicluster-prefix-cache-scorer":          clusters,
		"multicluster-approx-prefix-cache-producer": clusters,
		"multicluster-metrics-data-source":          clusters,
		"multicluster-metrics-extractor":            clusters,
	}
}
