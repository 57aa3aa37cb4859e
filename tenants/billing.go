package tenants

// Billing is how the use of a key is paid for.
type Billing struct {
	// Mode is off, shadow or enforce; empty is the installation's default.
	Mode string `json:"mode"`
	// Nodes are the wallets that its requests are paid from: the tenant, then the
	// project and the key where they have caps of their own.
	Nodes []string `json:"nodes"`
}
