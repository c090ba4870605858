// Package wake wakes a goroutine that waits for work.
package wake

// Up sends an item to a channel with space for one, unless that has one. It does not block.
func Up(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
