package extproc

// gRPC metadata with which a stream to a `weir scheduler` begins. It is the
// connection's owner who sets it (Envoy: initial_metadata of the grpc_service):
// headers of an HTTP request, which may come from anybody, never get there.
const (
	PoolKey    = "x-weir-pool"    // which pool the request is for; it may be left out where there is one
	GatewayKey = "x-weir-gateway" // "1": a gateway of ours, whose facts, reports and outcomes count
)

// ReasonHeader is the scheduler.Reason of a refusal, which for a gateway of ours
// says more than DroppedReason: a full flow is the caller's own doing.
const ReasonHeader = "x-weir-reason"

// EpochHeader numbers who decided, with a decision for a gateway of ours:
// "name/number", where the number rises with each change of the primary. Who has
// seen a higher one of the same name was answered by a primary that is none any
// more.
const EpochHeader = "x-weir-epoch"
