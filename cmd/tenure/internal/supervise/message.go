//go:build unix

package supervise

import "time"

// guardName is the first argument by which the executable knows that it is not to be a command.
const guardName = "tenure-guard"

// A request is what the supervisor tells the guard. Exactly one field is set.
type request struct {
	Start  *start  `json:",omitempty"` // start the program; the first request
	Arm    *bounds `json:",omitempty"` // the lease was renewed
	Signal int     `json:",omitempty"` // pass a signal on to the child
	Stop   *stop   `json:",omitempty"` // end the program
}

// start is what the guard does from its beginning. The program, and its environment, are in the
// guard's own arguments and environment: they are as large as the system allows, and any bytes.
type start struct {
	Grace      time.Duration
	Instant    bool // kill at once when the supervisor is gone
	Foreground bool // give the program the terminal
	Bounds     bounds
	After      string `json:",omitempty"` // command line to run when the program is gone; it has Grace
	// Watchdog is the descriptor of a watchdog, which waits for Timeout; 0: there is none. The lease lasts for
	// Last after Bounds.Kill.
	Watchdog      int `json:",omitempty"`
	Timeout, Last time.Duration
}

// program is what the guard starts, with the guard's environment.
type program struct {
	path string
	args []string // with the name of the program
}

// bounds are times on the shared clock.
type bounds struct {
	Stop time.Duration // when the guard stops the program by itself
	Kill time.Duration // when it kills it
}

// stop ends the program: a signal now, and SIGKILL at a time on the shared clock.
type stop struct {
	Signal int
	Kill   time.Duration
}

// A report is what the guard tells the supervisor. Exactly one field is set.
type report struct {
	Made   int           `json:",omitempty"` // the id of the program
	Armed  time.Duration `json:",omitempty"` // the guard will kill at this time
	Ended  *Status       `json:",omitempty"` // the program ended
	Stuck  string        `json:",omitempty"` // what cannot be killed, and why
	After  string        `json:",omitempty"` // how the command failed that runs after the program
	Gone   bool          `json:",omitempty"` // the program and all that it started are gone; the last report
	Failed string        `json:",omitempty"` // why the guard could not start the program, in its last report
}
