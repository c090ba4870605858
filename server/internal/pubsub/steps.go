package pubsub

// steps counts the steps of what one packet asks for. There can be a million of them, so
// after some it calls pause, with no lock held: others are to get in between.
type steps struct {
	pause func() // nil: never
	taken int    // since the last pause
}

func (s *steps) add(n int) {
	if s == nil || s.pause == nil {
		return
	}
	if s.taken += n; s.taken >= sliceSize {
		s.taken = 0
		s.pause()
	}
}

// offerSteps is what it counts to offer a message to a session.
const offerSteps = 16
