package llmd

import "google.golang.org/grpc"

// Peer is one picker.
type Peer interface {
	Conn() grpc.ClientConnInterface
	Name() string
	// Report tells how it answered: nil when it did, whatever it said.
	Report(err error)
}
