package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// patience bounds Apply. In a bubble a commit may be held for hours.
const patience = 24 * time.Hour

// Apply submits a command and waits until its reply may leave. The error wraps the failure that
// Run returns, or ErrStopped: then there is no reply, and the command may have been applied.
func (e *Engine) Apply(command statestore.Command) (statestore.Reply, error) {
	left := make(chan statestore.Reply, 1)
	reply, _ := e.Submit(command, func(reply statestore.Reply) { left <- reply })
	select {
	case reply = <-left:
		return reply, nil
	case <-e.life.Done():
	case <-time.After(patience):
		return reply, errors.New("no reply in time")
	}
	select {
	case reply = <-left: // it left before the end
		return reply, nil
	default:
		return statestore.Reply{}, fmt.Errorf("no reply: %w", context.Cause(e.life))
	}
}
