package scheduler

// charge is what one live lease is booked with: an estimate, until it ends.
type charge struct {
	band   *band
	flow   *flow
	weight int // of the flow when it was booked
	cost   int // as OutputCost weighs it
	tokens int // that count against a reservation

	amount float64 // VirtualTokenCounter: what the flow's counter grew by
	lifted float64 // the flow's, at that time
	paid   float64 // how much of the band's MinShare it made good

	program *program
	session *session
}

// service is what a request takes of a pool, in tokens.
type service struct {
	input     int // prompt tokens that are computed
	cached    int // and those that are not
	output    int
	estimated bool // nobody counted the input
}

func (s service) cost(output int) int { return s.input + output*s.output }
