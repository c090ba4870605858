//go:build unix

package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
)

// Intercept runs the guard if that is what this process was started for. Then it does not return. Each
// program that calls Run calls Intercept first.
func Intercept() {
	if os.Args[0] == guardName {
		os.Exit(runGuard())
	}
}

// guard is the state of the process that watches over one program. One goroutine has it.
type guard struct {
	socket   *channel
	reports  *json.Encoder
	program  program
	start    start
	bounds   bounds
	alarm    *alarm
	orphaned bool // the supervisor is gone

	processTree               // the processes
	stopping    bool          // the child was told to end
	cleaning    bool          // the child is the command that runs after the program
	leaseEnd    time.Duration // without another renewal; 0 once the lease is lost
	lock        io.Closer     // says that this guard works under its lease; nil: another process has it
	dog         *watchdog.Dog // nil: there is none
	childless   bool          // this process has no children
	killing     bool
	stuck       string // reported last
}

// killPause is the time between two looks at what is left, once everything was killed. Each end
// of a child wakes the guard earlier.
const killPause = 5 * time.Millisecond

// leftPause is the time between two looks at what a child that ended has left.
const leftPause = 20 * time.Millisecond

// runGuard is the guard: it returns when the program and all that it started are gone.
func runGuard() int {
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, guardIgnores...)
	socket, err := openChannel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s is a part of tenure run and tenure lock, and no command\n", guardName)
		return CodeNotExecutable
	}
	g := &guard{socket: socket, reports: json.NewEncoder(socket), program: program{path: os.Args[3], args: os.Args[4:]}}
	g.adopt()
	if g.alarm, err = newAlarm(); err != nil {
		g.report(report{Failed: err.Error()})
		return 1
	}
	requests := make(chan request)
	go g.read(requests) // ends with the process
	lost := make(chan struct{})
	for !g.isOver() {
		if g.lock == nil {
			g.lock, _ = Lock(os.Args[2])
		}
		g.alarm.at(min(g.next(), g.feed()))
		select {
		case r, open := <-requests:
			if !open {
				requests, g.orphaned = nil, true
				g.loseSupervisor()
				break
			}
			if err := g.handle(r); err != nil {
				g.report(report{Failed: err.Error()})
				return 1
			}
			if r.Start != nil {
				go func() { // ends with the process; the connection came with this request
					defer close(lost)
					g.socket.awaitLoss()
				}()
			}
		case <-lost:
			lost = nil
			g.loseConnection()
		case <-g.changed:
			g.reap()
		case <-ignored:
		case <-g.alarm.C:
		}
		g.advance()
	}
	if g.dog != nil {
		_ = g.dog.Close()
	}
	g.report(report{Gone: true})
	if g.orphaned && g.pid != 0 {
		g.say(fmt.Sprintf("tenure: the supervisor of %s was gone, so its guard has ended the program\n", g.program.args[0]))
	}
	return 0
}

// say writes to standard error, last of all: its reader may be gone or asleep.
func (g *guard) say(text string) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(os.Stderr, text)
	}()
	select {
	case <-written:
	case <-time.After(100 * time.Millisecond):
	}
}

// read passes requests on until the supervisor is gone.
func (g *guard) read(to chan<- request) {
	defer close(to)
	for requests := json.NewDecoder(g.socket); ; {
		var r request
		if requests.Decode(&r) != nil {
			return
		}
		rest, _ := io.ReadAll(requests.Buffered())
		r.more = len(bytes.TrimSpace(rest)) > 0
		to <- r
	}
}

// report sends a report. It does not wait for a supervisor that does not read: all reports
// together are less than the socket takes, except for the answers to a supervisor that sends.
func (g *guard) report(r report) {
	if g.orphaned {
		return
	}
	_ = g.reports.Encode(r)
}

func (g *guard) handle(r request) error {
	switch {
	case r.Start != nil:
		g.start, g.leaseEnd = *r.Start, r.Start.Kill+r.Start.Last
		if fd := g.start.Watchdog; fd != 0 {
			g.dog = &watchdog.Dog{File: inherited(fd), Timeout: g.start.Timeout}
		}
		g.report(report{Armed: g.start.Kill})
	case r.Arm != nil:
		if g.leaseEnd != 0 {
			g.leaseEnd = r.Arm.Kill + g.start.Last
		}
		if !g.stopping {
			g.bounds = *r.Arm
		}
		g.report(report{Armed: r.Arm.Kill})
	case r.Signal != 0 && g.pid != 0 && !g.ended && !g.cleaning:
		g.signalChild(r.Signal)
	case r.Stop != nil:
		if r.Stop.Lost {
			g.leaseEnd = 0
		}
		if !g.cleaning {
			g.stop(r.Stop.Signal)
			g.bounds.Kill = min(g.bounds.Kill, r.Stop.Kill)
		}
	}
	// A program starts by a deadline that has just come, and by nothing older: the lease may have been lost since.
	if g.pid != 0 || g.ended || r.more || now() >= g.bounds.Stop {
		return nil
	}
	if g.socket.isLost() {
		g.loseConnection()
		return nil
	}
	return g.startProgram()
}

// startProgram starts the program. One that cannot be executed has ended, with the code that a shell has for it.
func (g *guard) startProgram() error {
	err := g.makeProcess(g.program, []*os.File{os.Stdin, os.Stdout, os.Stderr}, g.start.Foreground)
	switch {
	case err == nil:
		g.report(report{Made: g.pid})
		return nil
	case isShortage(err):
		return fmt.Errorf("cannot start a process: %w: is a limit of processes, threads or memory reached?", err)
	}
	g.say(fmt.Sprintf("tenure: cannot start %s: %v\n", g.program.path, errors.Unwrap(err)))
	g.childless = true
	g.end(Status{Code: StartCode(err)})
	return nil
}

// loseSupervisor ends the program because the supervisor is gone, and cannot renew the lease.
func (g *guard) loseSupervisor() {
	if g.pid == 0 || g.cleaning {
		return
	}
	g.bounds.Kill = min(g.bounds.Kill, now()+g.start.Grace)
	if g.start.Instant {
		g.bounds.Kill = 0 // the broker has released the lease, perhaps
	}
	g.stop(terminateSignal)
}

// loseConnection kills the program, because the broker releases the lease when the connection ends.
func (g *guard) loseConnection() {
	g.leaseEnd = 0
	if !g.cleaning {
		g.bounds.Kill = 0
		g.stop(terminateSignal)
	}
}

// cleanUp starts the command that runs after the program. From then on it is what this guard has to end, before the
// lease can pass. If that is too late already, it still has its time.
func (g *guard) cleanUp() {
	g.cleaning, g.killing, g.stopping, g.ended, g.childless = true, false, true, false, false
	at := now()
	g.bounds.Kill = at + g.start.Grace
	if latest := g.leaseEnd - g.start.Last + g.start.Grace; latest > at {
		g.bounds.Kill = min(g.bounds.Kill, latest)
	}
	nothing, err := os.Open(os.DevNull)
	if err == nil {
		after := program{Shell, []string{Shell, "-c", g.start.After}}
		err = errors.Join(g.makeProcess(after, []*os.File{nothing, os.Stderr, os.Stderr}, false), nothing.Close())
	}
	if err != nil {
		g.ended, g.childless = true, true
		g.report(report{After: err.Error()})
		return
	}
	g.report(report{Clean: &cleanUp{g.pid, g.bounds.Kill}}) // a guard killed just before: twice is better than never
}

// feed feeds the watchdog, and returns when to do so again.
func (g *guard) feed() (next time.Duration) {
	at := now()
	if g.dog == nil {
		return at + time.Hour
	}
	_ = g.dog.Feed(g.leaseEnd - at) // a device that fails resets the machine, at worst
	return at + g.dog.Interval()
}

// stop tells the group of the child to end. A child that a signal stopped continues, so that it
// can end in order.
func (g *guard) stop(s int) {
	if g.stopping {
		return
	}
	g.stopping = true
	if g.pid == 0 { // and there will be none
		g.childless = true
		g.end(Status{Code: -1})
		return
	}
	g.signalGroup(s)
}

// next returns when to look again if nothing happens.
func (g *guard) next() time.Duration {
	switch {
	case g.pid == 0:
		return now() + time.Hour
	case g.killing:
		return now() + killPause
	case g.ended:
		return min(g.bounds.Kill, now()+leftPause)
	case g.stopping:
		return g.bounds.Kill
	}
	return min(g.bounds.Stop, g.bounds.Kill)
}

// advance does what is due.
func (g *guard) advance() {
	if g.pid == 0 || g.isOver() {
		return
	}
	at := now()
	if g.ended {
		g.reap() // not every system says when the last of what the child left ends
		if g.isOver() {
			return
		}
	}
	if g.ended && g.childless {
		g.cleanUp() // else it would be over
		return
	}
	if g.ended && !g.stopping { // what the child left behind has as long as the child would have
		g.stopping = true
		g.bounds.Kill = min(g.bounds.Kill, at+g.start.Grace)
		signalDescendants(g.pid, true, unix.SIGTERM, nil)
	}
	switch {
	case at >= g.bounds.Kill:
		g.killing = true
	case at >= g.bounds.Stop:
		g.stop(terminateSignal)
	}
	if g.killing {
		stuck := signalDescendants(g.pid, g.ended, unix.SIGKILL, nil)
		g.reap()
		if stuck != "" && stuck != g.stuck {
			g.stuck = stuck
			g.report(report{Stuck: stuck})
		}
	}
}

// isOver reports whether the program and all that it started are gone.
func (g *guard) isOver() bool {
	if g.pid == 0 && g.orphaned {
		return true
	}
	return g.ended && g.childless && (g.start.After == "" || g.cleaning || g.pid == 0)
}

// end notes that the child ended, and reports it.
func (g *guard) end(s Status) {
	g.ended = true
	if g.cleaning {
		if s.ExitCode() != 0 {
			g.report(report{After: s.String()})
		}
		return
	}
	s.Stopped = g.stopping || g.killing
	g.report(report{Ended: &s})
}
