package mqtt

import (
	"net/url"
	"strings"
)

// Rotation decides which of several servers a client connects to next. It is not safe for
// concurrent use.
type Rotation struct {
	servers []server
	turn    int
}

type server struct {
	url      *url.URL
	refused  bool // it sent this client to another one since the latest pause
	answered bool // it answered the latest attempt
	silent   int  // attempts and connections in a row that ended without an answer
	skipped  int  // pauses for which it is left out after it cost a timeout
}

// skips is how many pauses a server that cost a timeout is left out for, while another one can be
// asked: one that stands by, and may take its place.
const skips = 5

// NewRotation returns a rotation that begins with the first of servers, addresses from
// [ParseAddresses].
func NewRotation(servers []*url.URL) *Rotation {
	r := new(Rotation)
	for _, url := range servers {
		r.servers = append(r.servers, server{url: url})
	}
	return r
}

// Server returns the present server.
func (r *Rotation) Server() *url.URL { return r.present().url }

func (r *Rotation) present() *server { return &r.servers[r.turn] }

// Len returns the number of servers.
func (r *Rotation) Len() int { return len(r.servers) }

// goOn goes to a server that will do, and reports false if there is none: to first, or to the next one in the
// circle if first is -1 or will not do.
func (r *Rotation) goOn(first int, willDo func(*server) bool) bool {
	if first >= 0 && willDo(&r.servers[first]) {
		r.turn = first
		return true
	}
	for i := range r.servers {
		if next := (r.turn + 1 + i) % len(r.servers); willDo(&r.servers[next]) {
			r.turn = next
			return true
		}
	}
	return false
}

// Next goes to the next server in the circle that is not left out, for an attempt after a pause.
func (r *Rotation) Next() {
	r.pause()
	if !r.goOn(-1, func(s *server) bool { return s.skipped == 0 }) {
		r.turn = (r.turn + 1) % len(r.servers)
	}
}

// pause notes that there is one, so each server may be asked again.
func (r *Rotation) pause() {
	for i := range r.servers {
		s := &r.servers[i]
		s.refused, s.skipped = false, max(s.skipped-1, 0)
	}
}

// Rest notes that there was a long time without an attempt, so each server may be asked again, but
// for the present one if that has just cost a timeout.
func (r *Rotation) Rest() {
	for i := range r.servers {
		s := &r.servers[i]
		if s.refused = false; i != r.turn {
			s.skipped = 0
		}
	}
}

// TimedOut notes that the present server cost a timeout. After a few pauses it is asked again.
func (r *Rotation) TimedOut() { r.present().skipped = skips }

// OthersAnswer reports whether another server answered its latest attempt.
func (r *Rotation) OthersAnswer() bool {
	for i, server := range r.servers {
		if server.answered && i != r.turn {
			return true
		}
	}
	return false
}

// Silent notes that the present server did not answer, or that the connection to it was lost.
// Until Answered, no reference of another server leads to it: a server that stands by may name
// one that was frozen a moment ago, and to ask that costs a timeout.
func (r *Rotation) Silent() {
	s := r.present()
	s.silent, s.answered = s.silent+1, false
}

// Silence returns how many times Silent was called for the present server since Answered.
func (r *Rotation) Silence() int { return r.present().silent }

// Answered notes that the present server did answer.
func (r *Rotation) Answered() {
	s := r.present()
	s.silent, s.skipped, s.answered = 0, 0, true
}

// Follow goes on from the present server, which sends its clients to another one, as a standby
// does. reference is its Server Reference, or empty [MQTT-4.13.2]. The next server is the one
// that reference names, else the next in the circle. Servers that have sent the client on since
// the latest pause are left out, and so are silent ones. It reports whether one is left: if
// not, the next attempt needs a pause, and goes to a silent server if there is one that has cost no
// timeout a moment ago.
//
// The reference comes from a server that has not proved that it may name another one: over
// plain TCP anything could have written it. So it only chooses among the servers of the
// program and never adds one.
func (r *Rotation) Follow(reference string) (atOnce bool) {
	r.present().refused = true
	named := r.named(reference)
	if r.goOn(named, func(s *server) bool { return !s.refused && s.silent == 0 }) {
		return true
	}
	r.pause()
	if !r.goOn(named, func(s *server) bool { return s.silent > 0 && s.skipped == 0 }) {
		r.goOn(-1, func(s *server) bool { return s.skipped == 0 })
	}
	return false
}

// named returns the first server that a Server Reference names, or -1. A reference is a list with
// spaces in between. The items are host:port, or a host alone, which means any port; a scheme
// before them, as in an address, is ignored, because the address of the program decides about
// encryption.
func (r *Rotation) named(reference string) int {
	for item := range strings.FieldsSeq(reference) {
		if _, after, found := strings.Cut(item, "://"); found {
			item = after
		}
		item = strings.TrimSuffix(item, "/")
		for i, server := range r.servers {
			if strings.EqualFold(item, server.url.Host) || strings.EqualFold(strings.Trim(item, "[]"), server.url.Hostname()) {
				return i
			}
		}
	}
	return -1
}
