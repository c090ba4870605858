// Package descriptors says how many connections a process may have open, by its limit of file
// descriptors.
package descriptors

// reserved descriptors are not used for connections: the log, files that are read again, and
// whatever else is in the process need some.
const reserved = 64

// Hint is what an operator can do if there are too few descriptors.
const Hint = "raise the limit of open files: ulimit -n, or LimitNOFILE of systemd"

// MaxSockets returns how many connections this process may have open, with a reserve for
// other files. 0 means that there is no limit, or that it is unknown.
func MaxSockets() int {
	most := limit()
	if most == 0 {
		return 0
	}
	return max(most-reserved, most/2, 1)
}
