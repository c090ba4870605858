//go:build unix

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardPatience bounds how late a guard may be with a kill, before the supervisor does it.
const guardPatience = 500 * time.Millisecond

// patience is how late the guard may be with a kill. The supervisor's must fall into the margin too.
func (c *child) patience() time.Duration { return min(Margin(c.TTL)/2, guardPatience) }

// child is a program as the supervisor sees it.
type child struct {
	Options
	lease  Lease
	guard  *guardProcess
	pid    int     // of the program; 0 before it was made
	status *Status // nil before the program ended

	stopping    bool          // the program was told to end
	lost        bool          // the guard was told that the lease is gone
	cleaning    bool          // pid is the process of --after
	interrupted bool          // SIGINT was sent to it
	killAt      time.Duration // once stopping
	armed       time.Duration // the time at which the guard will kill, by its latest report
	sent        time.Duration // the latest time that it was sent
	silent      time.Duration // how long this process has waited for the answer
	terminal    *terminal
	foreground  bool // the guard gives the terminal to the program
}

// CanSupervise returns why no program can be supervised in this process, with the cure. On Linux
// the processes of a program are found in /proc. Run returns the same error.
func CanSupervise() error { return checkTree() }

// Run starts the program, and returns when it and all that it started are gone. It stops the
// program when ctx ends, and kills it before the lease is over. A caller that must wait for a lease
// that is not renewed any more, or that was lost, ends ctx.
//
// The status says how the program ended, and whether it was stopped. The error says why the program
// could not be started or supervised: then the program is gone too, except for what Logger got.
// Calls must not overlap.
func Run(ctx context.Context, lease Lease, o Options) (Status, error) {
	if o.Watchdog != nil {
		defer o.Watchdog.Close()
	}
	if err := CanSupervise(); err != nil {
		return Status{}, err
	}
	helpers.adopt()
	c := &child{Options: o, lease: lease}
	c.terminal = openTerminal()
	bounds, left := c.bounds()
	if left <= c.reserve() || o.Watchdog != nil && left < o.Watchdog.Timeout || ctx.Err() != nil {
		return Status{Code: -1, Stopped: true}, nil
	}
	var connection syscall.RawConn
	var err error
	if o.Connection != nil {
		if connection, err = o.Connection(); err != nil {
			return Status{Code: -1, Stopped: true}, nil // it was lost, and the lease with it
		}
	}
	foreground := c.terminal.isForeground()
	c.guard, err = startGuard(o, connection, start{
		Grace: o.Grace, Instant: o.Instant, Foreground: foreground, Kill: bounds.Kill, After: o.After, Last: c.reserve(),
	})
	switch {
	case errors.Is(err, errConnectionLost):
		return Status{Code: -1, Stopped: true}, nil
	case err != nil:
		return Status{}, err
	}
	for len(o.Signals) > 0 {
		<-o.Signals // they came before there was a program
	}
	c.foreground = foreground
	defer c.terminal.take()
	defer helpers.setProgram(0)
	err = c.supervise(ctx)
	if err == nil {
		c.guard.end()
		return c.ended(), nil
	}
	// The guard does not do its work, so this process does.
	if gone := c.killGuard(); gone {
		return c.ended(), nil
	}
	killLeft(c.pid, c.status != nil && !c.cleaning, func(stuck string) { c.stuck(stuck) })
	// The guard may have started the program, and not have said so; or --after, which was cut then.
	if o.After != "" && c.sent != 0 {
		period := o.Grace
		if left := lease.Remaining() - Margin(o.TTL); left > 0 { // else it is too late already
			period = min(period, left)
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), period)
		defer cancel()
		if err := Check(after, "--after", o.After, o.Env); err != nil {
			c.afterFailed(err.Error())
		}
	}
	switch {
	case c.status != nil: // it must not run again because of its guard
		c.Logger.Warn("what the program left was killed without its guard", "lease", c.Name, "error", err)
		err = nil
	case c.stopping:
		c.Logger.Warn("the program was killed without its guard", "lease", c.Name, "error", err)
		err = nil
	}
	return c.ended(), err
}

// ended returns the status once all is gone.
func (c *child) ended() Status {
	switch {
	case c.status != nil:
		return *c.status
	case c.pid == 0:
		return Status{Code: -1, Stopped: true}
	}
	return Status{Code: -1, Signal: killSignal, Stopped: true} // with its guard
}

// killGuard kills the guard, and notes what it reported before: the program may have ended, and only
// the guard knew its code. It returns whether all is gone.
func (c *child) killGuard() (gone bool) {
	c.guard.killAndRead(func(r report) {
		c.note(r)
		gone = gone || r.Gone
	})
	return gone
}

// reserve is how long before the end of the lease the program is killed, at the latest.
func (c *child) reserve() time.Duration {
	if c.After == "" {
		return Margin(c.TTL)
	}
	return Margin(c.TTL) + c.Grace
}

// bounds returns when the guard must act by itself, by the present deadline of the lease, and how
// long the lease lasts.
func (c *child) bounds() (bounds, time.Duration) {
	at := now() // before the lease is asked: a process that stands still in between is early, never late
	left := c.lease.Remaining()
	kill := at + left - c.reserve()
	// The supervisor stops the program a whole Grace before. The guard does when that is late.
	return bounds{Stop: kill - c.Grace*3/4, Kill: kill}, left
}

// interval is the time between two calls of check. A renewal must reach the guard well before it
// would act on the deadline before. From a stop on, a guard that is late must be seen in time.
func (c *child) interval() time.Duration {
	interval := min(c.TTL/12, c.Grace/8)
	if c.stopping {
		interval = min(interval, c.patience()/5)
	}
	return max(interval, 5*time.Millisecond)
}

// supervise returns when the guard says that all is gone, or why it cannot say it.
func (c *child) supervise(ctx context.Context) error {
	tick := time.NewTicker(c.interval())
	defer tick.Stop()
	ended, hurries := ctx.Done(), false
	for {
		if c.stopping && !hurries {
			hurries = true
			tick.Reset(c.interval())
		}
		select {
		case r, open := <-c.guard.reports:
			if !open {
				return ErrGuard
			}
			c.note(r)
			if r.Failed != "" {
				return fmt.Errorf("the guard of the program: %s", r.Failed)
			}
			if r.Gone {
				return nil
			}
			if r.Armed == 0 {
				continue
			}
			if err := c.check(ctx); err != nil { // the program may wait for it
				return err
			}
		case s := <-c.Signals:
			c.signal(s)
		case <-ended:
			ended = nil
			c.stop(stopSignal(ctx))
		case <-tick.C:
			if err := c.check(ctx); err != nil {
				return err
			}
		}
	}
}

// note notes what a report says, and logs what cannot be killed.
func (c *child) note(r report) {
	switch {
	case r.Made != 0:
		c.pid = r.Made
		helpers.setProgram(c.pid)
		if c.foreground {
			c.terminal.isGiven(c.pid)
		}
	case r.Armed != 0:
		c.armed = r.Armed
	case r.Ended != nil:
		c.status = r.Ended
		c.status.ByKey = c.status.Signal == int(syscall.SIGINT) && !c.interrupted && c.terminal.hasProgram()
		c.terminal.take()
	case r.Stuck != "":
		c.stuck(r.Stuck)
	case r.Clean != nil:
		c.pid, c.killAt, c.cleaning, c.stopping = r.Clean.PID, r.Clean.Kill, true, true
		helpers.setProgram(c.pid)
	case r.After != "":
		c.afterFailed(r.After)
	}
}

func (c *child) afterFailed(how string) {
	c.Logger.Error("the command that runs after the program failed", "lease", c.Name, "command", c.After, "error", how)
}

// stuck logs what cannot be killed.
func (c *child) stuck(process string) {
	c.Logger.Error("a process of the program cannot be killed; the lease is not released while it runs, and may expire",
		"lease", c.Name, "process", process)
}

// stop tells the guard to end the program, and to kill it after Grace or before the lease is over,
// if that is earlier. If the lease is gone, the program has no time, though it may be stopping already.
func (c *child) stop(signal int) {
	at := now()
	bounds, left := c.bounds()
	lost := left <= 0
	if c.stopping && (c.lost || !lost) {
		return
	}
	kill := min(at+c.Grace, bounds.Kill)
	if lost {
		kill = at // another node may have the lease
	}
	if !c.stopping || !c.cleaning && kill < c.killAt {
		c.killAt = kill
	}
	c.stopping, c.lost = true, lost
	c.interrupted = c.interrupted || signal == int(syscall.SIGINT)
	c.guard.send(request{Stop: &stop{Signal: signal, Kill: kill, Lost: lost}})
}

// signal passes a signal on. The program that is being stopped is killed when it is interrupted again.
func (c *child) signal(s os.Signal) {
	switch number := int(s.(syscall.Signal)); {
	case c.cleaning: // which has its time
	case IsEnd(s):
		c.stopping = true
		c.killAt = now()
		c.guard.send(request{Stop: &stop{Signal: number, Kill: c.killAt}})
	case number == continueSignal: // the supervisor was stopped
		c.terminal.give(c.pid)
		c.guard.send(request{Signal: continueSignal})
	case s != unix.SIGPIPE: // of a write that failed
		c.guard.send(request{Signal: number})
	}
}

// check tells the guard of renewals, and does what the guard should have done if it does not.
func (c *child) check(ctx context.Context) error {
	bounds, left := c.bounds()
	at := now()
	if left <= 0 {
		// The lease was lost, or this process stood still. Another node may start the program at once.
		c.stop(stopSignal(ctx))
	}
	if !c.stopping && ctx.Err() == nil && c.hasAnswered() && bounds.Kill > c.sent+time.Millisecond {
		c.sent, c.silent = bounds.Kill, 0
		c.guard.send(request{Arm: &bounds})
	}
	if c.isOverdue(at) {
		return fmt.Errorf("%w: it does not answer", ErrGuard)
	}
	return nil
}

// hasAnswered reports whether the guard has answered what it was sent last: Start, or the latest deadline.
func (c *child) hasAnswered() bool { return c.armed > 0 && c.armed >= c.sent }

// isOverdue reports whether the guard has not done in time what it should have done. The time for
// its kill is on the clock, because the lease is. The time for its answer to a renewal, which is not
// urgent, is counted in calls: after this process stood still, the answer may be there, unread.
func (c *child) isOverdue(at time.Duration) bool {
	switch {
	case c.stopping:
		return at > c.killAt+c.patience()
	case !c.hasAnswered():
		c.silent += c.interval()
		return c.silent > max(c.TTL/4, time.Second)
	}
	return false
}
