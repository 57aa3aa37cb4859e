package billing

import "time"

// settleSQL takes columns.args, in their order.
const settleSQL = `SELECT weir_settle(
	$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)`

// columns holds a batch as weir_settle takes it: an array for each column.
type columns struct {
	tenants, requests, clientRequests, projects, keys []string
	operations, models, pools, endpoints              []string
	attempts                                          []int32
	streams                                           []bool
	bands                                             []string
	priorities                                        []int32
	tiers                                             []string
	inputUncached, inputCached, outputs, reasoning    []int64
	sources                                           []string
	priceVersions, costs                              []int64
	started                                           []time.Time
	queue, ttft, duration                             []int64
	outcomes                                          []string
}

// receiptID is what makes a receipt unique.
type receiptID struct{ tenant, request string }

// gather makes columns of a batch, and counts its effects. A receipt that
// stands twice in the batch is taken once.
func gather(batch []*settlement) (c *columns, effects int) {
	c = &columns{}
	seen := make(map[receiptID]bool, len(batch))
	for _, it := range batch {
		effects += len(it.effect)
		r := &it.receipt
		id := receiptID{r.Tenant, r.RequestID}
		if !seen[id] {
			seen[id] = true
			c.add(r)
		}
	}
	return c, effects
}

func (c *columns) add(r *Receipt) {
	c.tenants = append(c.tenants, r.Tenant)
	c.requests = append(c.requests, r.RequestID)
	c.clientRequests = append(c.clientRequests, r.ClientRequestID)
	c.projects = append(c.projects, r.Project)
	c.keys = append(c.keys, r.Key)
	c.operations = append(c.operations, r.Operation)
	c.models = append(c.models, r.Model)
	c.pools = append(c.pools, r.Pool)
	c.endpoints = append(c.endpoints, r.Endpoint)
	c.attempts = append(c.attempts, int32(r.Attempts)) //nolint:gosec // Validate bounds it
	c.streams = append(c.streams, r.Stream)
	c.bands = append(c.bands, r.Band)
	c.priorities = append(c.priorities, int32(r.Priority)) //nolint:gosec // Validate bounds it
	c.tiers = append(c.tiers, r.Tier)
	c.inputUncached = append(c.inputUncached, r.Usage.InputUncached)
	c.inputCached = append(c.inputCached, r.Usage.InputCached)
	c.outputs = append(c.outputs, r.Usage.Output)
	c.reasoning = append(c.reasoning, r.Usage.Reasoning)
	c.sources = append(c.sources, string(r.UsageSource))
	c.priceVersions = append(c.priceVersions, r.PriceVersion)
	c.costs = append(c.costs, r.CostNano)
	c.started = append(c.started, r.StartedAt)
	c.queue = append(c.queue, r.QueueTime.Microseconds())
	c.ttft = append(c.ttft, r.TTFT.Microseconds())
	c.duration = append(c.duration, r.Duration.Microseconds())
	c.outcomes = append(c.outcomes, r.Outcome)
}

func (c *columns) args() []any {
	return []any{
		c.tenants, c.requests, c.clientRequests, c.projects, c.keys,
		c.operations, c.models, c.pools, c.endpoints, c.attempts, c.streams,
		c.bands, c.priorities, c.tiers,
		c.inputUncached, c.inputCached, c.outputs, c.reasoning,
		c.sources, c.priceVersions, c.costs,
		c.started, c.queue, c.ttft, c.duration, c.outcomes,
	}
}
