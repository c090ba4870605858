// Package closed says whether a channel that is only ever closed is closed.
package closed

// Is reports whether a signal was given: its channel is closed. It does not block.
func Is(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}
