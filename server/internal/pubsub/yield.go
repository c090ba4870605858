package pubsub

// steps counts the steps that one packet takes. There can be a million of them, so after
// sliceSize steps it calls pause, with no lock held, to let other connections run.
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

// offerSteps is how many steps it counts for offering a message to a session.
const offerSteps = 16
