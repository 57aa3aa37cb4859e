package llmd

import "time"

// StandbyState is how a Standby stands, for people and metrics.
type StandbyState struct {
	EPPs      []EPPState `json:"epps"` // in the order in which they are wanted
	Failovers uint64     `json:"failovers"`
}

// EPPState is one scheduler of the list.
type EPPState struct {
	Address string    `json:"address"`
	Up      bool      `json:"up"`
	InUse   bool      `json:"in_use"`          // what is scheduled next goes there
	Waits   bool      `json:"waits,omitempty"` // it lives and says that it doesn't serve: of those that elect one among them the others do
	Fault   string    `json:"fault,omitempty"` // why it is down, or what is odd about it
	Since   time.Time `json:"since,omitzero"`  // it is up or down
}

// State takes a snapshot.
func (s *Standby) State() StandbyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := StandbyState{Failovers: s.failovers}
	inUse := best(s.members)
	for i, m := range s.members {
		out.EPPs = append(out.EPPs, EPPState{
			Address: m.epp.Address, Up: !m.down, InUse: i == inUse && !s.closed, Waits: m.waits, Fault: m.fault, Since: m.since,
		})
	}
	return out
}
