package admin

import (
	"time"

	"github.com/tenurelock/tenure/server/activity"
)

// The bounds, for tests.
const (
	MaxStreams     = maxStreams
	MaxConnections = maxConnections
	MaxNames       = maxNames
)

// SetState makes the page show what state returns.
func (r *Recorder) SetState(state func(now time.Time) activity.State) { r.state = state }
