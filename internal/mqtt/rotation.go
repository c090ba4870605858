package mqtt

import (
	"net/url"
	"strings"
)

// Rotation decides which of several servers a client connects to next. It is not safe for
// concurrent use.
type Rotation struct {
	servers []*url.URL
	turn    int
	// refused has the servers that sent this client to another one since the latest pause.
	refused []bool
	// silent has, for each server, how many attempts and connections in a row ended without an
	// answer of the server.
	silent []int
	// answered has the servers that answered the latest attempt.
	answered []bool
	// skipped has, for each server, how many pauses it is still left out for after it cost a timeout.
	skipped []int
}

// skips is how many pauses a server that cost a timeout is left out for, while another one can be
// asked: one that stands by, and may take its place.
const skips = 5

// NewRotation returns a rotation that begins with the first of servers, addresses from
// [ParseAddresses].
func NewRotation(servers []*url.URL) *Rotation {
	return &Rotation{servers: servers, refused: make([]bool, len(servers)), silent: make([]int, len(servers)), answered: make([]bool, len(servers)), skipped: make([]int, len(servers))}
}

// Server returns the present server.
func (r *Rotation) Server() *url.URL { return r.servers[r.turn] }

// Len returns the number of servers.
func (r *Rotation) Len() int { return len(r.servers) }

// Next goes to the next server in the circle, for an attempt after a pause.
func (r *Rotation) Next() {
	r.pause()
	r.turn = r.due()
}

// due returns the next server in the circle that is not left out, or the next one if all are.
func (r *Rotation) due() int {
	for i := range r.servers {
		if next := (r.turn + 1 + i) % len(r.servers); r.skipped[next] == 0 {
			return next
		}
	}
	return (r.turn + 1) % len(r.servers)
}

// pause notes that there is one, so each server may be asked again.
func (r *Rotation) pause() {
	clear(r.refused)
	for i := range r.skipped {
		r.skipped[i] = max(r.skipped[i]-1, 0)
	}
}

// Rest notes that there was a long time without an attempt, so each server may be asked again, but
// for the present one if that has just cost a timeout.
func (r *Rotation) Rest() {
	clear(r.refused)
	present := r.skipped[r.turn]
	clear(r.skipped)
	r.skipped[r.turn] = present
}

// TimedOut notes that the present server cost a timeout. After a few pauses it is asked again.
func (r *Rotation) TimedOut() { r.skipped[r.turn] = skips }

// OthersAnswer reports whether another server answered its latest attempt.
func (r *Rotation) OthersAnswer() bool {
	for i, answered := range r.answered {
		if answered && i != r.turn {
			return true
		}
	}
	return false
}

// Silent notes that the present server did not answer, or that the connection to it was lost.
// Until Answered, no reference of another server leads to it: a server that stands by may name
// one that was frozen a moment ago, and to ask that costs a timeout.
func (r *Rotation) Silent() {
	r.silent[r.turn]++
	r.answered[r.turn] = false
}

// Silence returns how many times Silent was called for the present server since Answered.
func (r *Rotation) Silence() int { return r.silent[r.turn] }

// Answered notes that the present server did answer.
func (r *Rotation) Answered() {
	r.silent[r.turn], r.skipped[r.turn], r.answered[r.turn] = 0, 0, true
}

// Follow goes on from the present server, which sends its clients to another one, as a standby
// does. reference is its Server Reference, or empty [MQTT-4.13.2]. The next server is the one
// that reference names, else the next in the circle. Servers that have sent the client on since
// the latest pause are left out, and so are silent ones. atOnce reports whether one is left: if
// not, the next attempt needs a pause, and goes to a silent server if there is one.
//
// The reference comes from a server that has not proved that it may name another one: over
// plain TCP anything could have written it. So it only chooses among the servers of the
// program and never adds one. known reports whether it named one of them.
func (r *Rotation) Follow(reference string) (atOnce, known bool) {
	r.refused[r.turn] = true
	named, known := r.named(reference)
	if known && !r.refused[named] && r.silent[named] == 0 {
		r.turn = named
		return true, true
	}
	for range r.servers {
		r.turn = (r.turn + 1) % len(r.servers)
		if !r.refused[r.turn] && r.silent[r.turn] == 0 {
			return true, known
		}
	}
	r.pause()
	r.nextSilent(named, known)
	return false, known
}

// nextSilent goes to a silent server, because all others have sent this client on: to the one that
// is named, else to the next one. If none is silent, or all of them cost a timeout a moment ago, it
// goes to the next server.
func (r *Rotation) nextSilent(named int, known bool) {
	if known && r.silent[named] > 0 && r.skipped[named] == 0 {
		r.turn = named
		return
	}
	for range r.servers {
		r.turn = (r.turn + 1) % len(r.servers)
		if r.silent[r.turn] > 0 && r.skipped[r.turn] == 0 {
			return
		}
	}
	r.turn = r.due()
}

// named returns the first server that a Server Reference names. A reference is a list with
// spaces in between. The items are host:port, or a host alone, which means any port; a scheme
// before them, as in an address, is ignored, because the address of the program decides about
// encryption.
func (r *Rotation) named(reference string) (server int, known bool) {
	for item := range strings.FieldsSeq(reference) {
		if _, after, found := strings.Cut(item, "://"); found {
			item = after
		}
		item = strings.TrimSuffix(item, "/")
		for i, server := range r.servers {
			if strings.EqualFold(item, server.Host) || strings.EqualFold(strings.Trim(item, "[]"), server.Hostname()) {
				return i, true
			}
		}
	}
	return 0, false
}
