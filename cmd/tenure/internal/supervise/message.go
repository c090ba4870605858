//go:build unix

package supervise

import "time"

// guardName and starterName are the first arguments by which the executable knows that it is not
// to be a command.
const (
	guardName   = "tenure-guard"
	starterName = "tenure-start"
)

// A request is what the supervisor tells the guard. Exactly one field is set.
type request struct {
	Start  *start  `json:",omitempty"` // make a process for the program; the first request
	Run    bool    `json:",omitempty"` // let the process become the program
	Arm    *bounds `json:",omitempty"` // the lease was renewed
	Signal int     `json:",omitempty"` // pass a signal on to the child
	Stop   *stop   `json:",omitempty"` // end the program
}

// start is what the guard does from its beginning. The program, and its environment, are in the
// guard's own arguments and environment: they are as large as the system allows, and any bytes.
type start struct {
	Grace   time.Duration
	Instant bool // kill at once when the supervisor is gone
	Bounds  bounds
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
	Made   int           `json:",omitempty"` // the id of the process that waits for Run
	Armed  time.Duration `json:",omitempty"` // the guard will kill at this time
	Paused int           `json:",omitempty"` // the terminal stopped the program with this signal
	Ended  *Status       `json:",omitempty"` // the program ended
	Stuck  string        `json:",omitempty"` // what cannot be killed, and why
	Gone   bool          `json:",omitempty"` // the program and all that it started are gone; the last report
	Failed string        `json:",omitempty"` // why the guard could not start, in its last report; or, with Ended, why there was no program
}
