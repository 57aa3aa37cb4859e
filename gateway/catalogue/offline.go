package catalogue

import "weir/billing"

// Snapshot is the catalogue that a parsed document describes, without a
// database. The document must be valid, and is not to be changed afterwards.
func (d *Document) Snapshot(prices *billing.Book) *Snapshot { return newSnapshot(d, prices) }
