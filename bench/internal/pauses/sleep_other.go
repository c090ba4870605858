//go:build !linux

package pauses

import (
	"errors"
	"time"
)

// Sleeper returns time.Sleep: other systems have no common way to sleep more exactly.
func Sleeper() (sleep func(time.Duration), done func()) {
	return time.Sleep, func() {}
}

// realTimeSleeper returns an error: other systems have no common way to set a real-time priority.
func realTimeSleeper(int) (sleep func(time.Duration), done func(), err error) {
	return nil, nil, errors.ErrUnsupported
}
