package mqtt

import "net/url"

// Rotation decides which of several servers a client connects to next. It is not safe for
// concurrent use.
type Rotation struct {
	servers []server
	turn    int
}

type server struct {
	url     *url.URL
	refused bool // it sent this client to another one since the latest pause
	silent  int  // attempts and connections in a row that ended without an answer
	skipped int  // pauses for which it is left out after it cost a timeout
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

// goOn goes to the next server in the circle that will do, and reports false if there is none.
func (r *Rotation) goOn(willDo func(*server) bool) bool {
	for i := range r.servers {
		if next := (r.turn + 1 + i) % len(r.servers); willDo(&r.servers[next]) {
			r.turn = next
			return true
		}
	}
	return false
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

// Silent notes that the present server did not answer, or that the connection to it was lost.
// Until Answered, a referral leaves it out: it may be frozen, and to ask it costs a timeout.
func (r *Rotation) Silent() { r.present().silent++ }

// Silence returns how many times Silent was called for the present server since Answered.
func (r *Rotation) Silence() int { return r.present().silent }

// Answered notes that the present server did answer.
func (r *Rotation) Answered() {
	s := r.present()
	s.silent, s.skipped = 0, 0
}

// Next goes to the next server in the circle for the next attempt, and reports whether that needs no pause.
//
// It needs none if the present server refers its clients to another one, as a standby does, and there is one that has
// not done so since the latest pause and is not silent. The attempt after a pause goes to a server that has cost no
// timeout a moment ago; after a referral, to a silent one if there is any.
//
// The server may name another one [MQTT-4.13.2]. It has not proved that it may: over plain TCP anything
// could have written that. So it decides nothing.
func (r *Rotation) Next(referred bool) (atOnce bool) {
	r.present().refused = referred
	if referred && r.goOn(func(s *server) bool { return !s.refused && s.silent == 0 }) {
		return true
	}
	r.pause()
	if !(referred && r.goOn(func(s *server) bool { return s.silent > 0 && s.skipped == 0 })) &&
		!r.goOn(func(s *server) bool { return s.skipped == 0 }) {
		r.turn = (r.turn + 1) % len(r.servers)
	}
	return false
}
