package billing

// Mode is what billing does with a tenant's requests.
type Mode string

// Modes of billing.
const (
	ModeOff     Mode = "off"     // receipts alone, rated where there is a price
	ModeShadow  Mode = "shadow"  // metered and rated, never refused, not booked
	ModeEnforce Mode = "enforce" // held, booked, and refused when the money is gone
)

// valid takes the empty mode for ModeOff.
func (m Mode) valid() bool {
	switch m {
	case "", ModeOff, ModeShadow, ModeEnforce:
		return true
	default:
		return false
	}
}

// Who settles a receipt.
const (
	ByGateway = "gateway" // the exchange itself
	BySweeper = "sweeper" // for an exchange whose replica vanished
)
