package billing

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// settleSQL takes receiptRows and returns the request ids that were new, and by
// how many nano-USD tenants spent more than they had.
const settleSQL = `SELECT stored, overspent_nano FROM weir_settle_tiered($1)`

// receiptRows is a batch as weir_settle_tiered takes it: an array of
// weir_receipt_tiered.
type receiptRows = pgtype.FlatArray[receiptRow]

// receiptRow is one weir_receipt_tiered.
type receiptRow struct{ *Receipt }

// learnRows teaches a new connection the types of the database.
func learnRows(ctx context.Context, conn *pgx.Conn) error {
	const row, rows = "weir_receipt_tiered", "_weir_receipt_tiered"
	if _, known := conn.TypeMap().TypeForName(rows); known {
		return nil
	}
	types, err := conn.LoadTypes(ctx, []string{row, rows})
	if err != nil {
		return fmt.Errorf("load type %s: %w", row, err)
	}
	conn.TypeMap().RegisterTypes(types)
	return nil
}

// receiptID is what makes a receipt unique.
type receiptID struct{ tenant, request string }

// rowsOf makes rows of a batch, and counts its effects. A receipt that stands
// twice in the batch is taken once.
func rowsOf(batch []*settlement) (rows receiptRows, effects int) {
	rows = make(receiptRows, 0, len(batch))
	seen := make(map[receiptID]bool, len(batch))
	for _, it := range batch {
		effects += len(it.effect)
		id := receiptID{it.receipt.Tenant, it.receipt.RequestID}
		if !seen[id] {
			seen[id] = true
			rows = append(rows, receiptRow{&it.receipt})
		}
	}
	return rows, effects
}

// IsNull is part of pgtype.CompositeIndexGetter.
func (r receiptRow) IsNull() bool { return false }

// Index is the column at i, in the order of weir_receipt_tiered.
func (r receiptRow) Index(i int) any {
	switch i {
	case 0:
		return r.Tenant
	case 1:
		return r.RequestID
	case 2:
		return r.ClientRequestID
	case 3:
		return r.Project
	case 4:
		return r.Key
	case 5:
		return r.Operation
	case 6:
		return r.Model
	case 7:
		return r.Pool
	case 8:
		return r.Endpoint
	case 9:
		return int32(r.Attempts) //nolint:gosec // Validate bounds it
	case 10:
		return r.Stream
	case 11:
		return r.Band
	case 12:
		return int32(r.Priority) //nolint:gosec // Validate bounds it
	case 13:
		return r.Tier
	case 14:
		return r.Usage.InputUncached
	case 15:
		return r.Usage.InputCached
	case 16:
		return r.Usage.Output
	case 17:
		return r.Usage.Reasoning
	case 18:
		return string(r.UsageSource)
	case 19:
		return r.PriceVersion
	case 20:
		return r.CostNano
	case 21:
		return r.StartedAt
	case 22:
		return r.QueueTime.Microseconds()
	case 23:
		return r.TTFT.Microseconds()
	case 24:
		return r.Duration.Microseconds()
	case 25:
		return r.Outcome
	case 26:
		return r.SavedNano
	case 27:
		return string(cmp.Or(r.Mode, ModeOff))
	case 28:
		return cmp.Or(r.SettledBy, ByGateway)
	case 29:
		return r.Chunks
	case 30:
		host, _ := r.CachedTiers.columns()
		return host
	default:
		_, storage := r.CachedTiers.columns()
		return storage
	}
}
