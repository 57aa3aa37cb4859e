package extproc

// Headers of a request to an Endpoint Picker. Each comes in two generations;
// a picker that knows both lets the current one win.
const (
	FairnessID    = "x-llm-d-inference-fairness-id"
	FairnessIDOld = "x-gateway-inference-fairness-id"
	Objective     = "x-llm-d-inference-objective"
	ObjectiveOld  = "x-gateway-inference-objective"
	QueueTTL      = "x-llm-d-inference-ttl" // a Go duration; pickers before 0.11 ignore it
	WantedTTFT    = "x-llm-d-slo-ttft-ms"
	WantedTTFTOld = "x-slo-ttft-ms"
	RequestID     = "x-request-id"
	SessionToken  = "x-session-token" // both ways: the picker's own note of where a session is
	SessionID     = "x-session-id"
	Method        = ":method"
	Path          = ":path"
	ContentType   = "content-type"
	Status        = ":status"
	PlainStatus   = "status" // what a picker really reads to count an engine's errors
)

// Headers and metadata of a picker's answer.
const (
	Destination       = "x-gateway-destination-endpoint" // host:port[,host:port], header and metadata
	DestinationSpace  = "envoy.lb"                       // the metadata's name space
	DroppedReason     = "x-llm-d-request-dropped-reason"
	QueueMilliseconds = "x-llm-d-flow-queue-duration-ms"
	RetryAfter        = "retry-after" // seconds; only a `weir scheduler` sends it
)

// Headers that a picker may have added to the request for the engine.
const (
	Prefiller        = "x-prefiller-host-port"
	Encoders         = "x-encoder-hosts-ports"
	DataParallelHost = "x-data-parallel-host-port"
	DataParallelRank = "x-data-parallel-rank"
	KVCacheSource    = "x-kv-cache-source-host-port"
)

// Upstream lists the headers that a picker may add for the engine. Whatever
// else it sends is an echo of the request, or none of its business.
func Upstream() []string {
	return []string{Prefiller, Encoders, DataParallelHost, DataParallelRank, KVCacheSource}
}

// The values of DroppedReason.
const (
	RejectedSaturated    = "rejected-saturated"
	RejectedNoEndpoints  = "rejected-no-endpoints"
	RejectedExpired      = "rejected-ttl-expired"
	RejectedCancelled    = "rejected-context-cancelled"
	RejectedShuttingDown = "rejected-shutting-down"
	RejectedInternal     = "rejected-internal"
	EvictedReason        = "evicted"
)

// MaxChunk bounds one body message towards a picker, whose gRPC server refuses
// messages of 4 MiB; MaxPiece bounds one towards a gateway, as Envoy has it.
const (
	MaxChunk = 1 << 20
	MaxPiece = 62000
)
