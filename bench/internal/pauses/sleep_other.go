//go:build !linux

package pauses

import "time"

// Sleeper returns time.Sleep: other systems have no common way to sleep more exactly.
func Sleeper() (sleep func(time.Duration), done func()) {
	return time.Sleep, func() {}
}
