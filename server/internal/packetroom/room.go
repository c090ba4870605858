// Package packetroom divides the room for large packets that are arriving among the users of a
// server, so that one user that leaves packets incomplete cannot keep the others from sending.
package packetroom

import (
	"container/list"
	"sync"
)

// Assured is how many bytes each place has whatever others take. They do not count.
const Assured = 16 << 10

// Room is a number of bytes that places share. If it is short, the user that has the most gives some
// back: its place that waits longest for the rest of a packet loses its bytes. A user that has less
// than the others takes them even from packets that are complete and not handled yet. So each user
// can have as much as any other, and what no other user wants besides. Its methods, and those of its
// places, are safe for concurrent use. Use New.
type Room struct {
	limit int64

	mu    sync.Mutex
	used  int64
	users map[string]*share // that have any bytes
}

// share is what the places of a user have.
type share struct {
	bytes  int64
	places [2]list.List // of *Place, by state, the longest in it first
}

// The states of a place.
const (
	handling = iota // its packet is complete, or it has none
	arriving        // it waits for the rest of its packet
)

// Place is what one connection has of a Room.
type Place struct {
	room *Room
	lost func(waiting bool)

	// Guarded by Room.mu.
	own     int64 // bytes, of which Assured do not count
	user    *share
	name    string
	state   int
	element *list.Element // in user.places[state]; nil: no bytes of the place count
	gone    bool          // it has lost its bytes
}

// New returns a room of limit bytes.
func New(limit int64) *Room { return &Room{limit: limit, users: make(map[string]*share)} }

// Used returns how many bytes are taken that count.
func (r *Room) Used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// NewPlace returns a place without bytes. lost is called once if the place loses its bytes to
// another: it must end the connection, and must not wait. waiting says that the connection waits
// for the rest of a packet.
func (r *Room) NewPlace(lost func(waiting bool)) *Place { return &Place{room: r, lost: lost} }

// Finished notes that the packet for which the place has bytes is complete. They are given back before
// the next packet.
func (p *Place) Finished() {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if p.element != nil {
		p.user.places[p.state].Remove(p.element)
		p.state = handling
		p.element = p.user.places[p.state].PushBack(p)
	}
}

// Take takes bytes for a place that waits for the rest of a packet, of a user that may be empty. It
// reports false, taking nothing, if the place may not have them: it has lost its bytes, is itself the
// one that waits longest, or no place waits that could lose its bytes.
func (p *Place) Take(user string, bytes int64) bool {
	victims, ok := p.take(user, bytes)
	for _, v := range victims {
		v.place.lost(v.waiting)
	}
	return ok
}

// victim is a place that has lost its bytes.
type victim struct {
	place   *Place
	waiting bool
}

func (p *Place) take(user string, bytes int64) (victims []victim, ok bool) {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	more := counted(p.own+bytes) - counted(p.own)
	switch {
	case p.gone, counted(p.own+bytes) > r.limit:
		return nil, false
	case p.element == nil:
		p.name, p.state = user, arriving // room is taken for the rest of a packet
	}
	for r.used+more > r.limit {
		v := r.victimFor(p, more)
		if v == nil || v == p {
			return victims, false
		}
		victims = append(victims, victim{v, v.state == arriving})
		v.set(0)
		v.gone = true
	}
	p.set(p.own + bytes)
	return victims, true
}

// victimFor returns the place that must lose its bytes so that another can have more, or nil.
func (r *Room) victimFor(p *Place, more int64) *Place {
	name, most := p.name, more
	if own := r.users[name]; own != nil {
		most += own.bytes
	}
	for other, s := range r.users {
		if other != p.name && s.bytes > most {
			name, most = other, s.bytes
		}
	}
	s := r.users[name]
	if s == nil {
		return nil
	}
	longest := s.places[arriving].Front()
	if longest == nil && name != p.name {
		longest = s.places[handling].Front()
	}
	if longest == nil {
		return nil
	}
	return longest.Value.(*Place)
}

// Release gives bytes back.
func (p *Place) Release(bytes int64) {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if !p.gone {
		p.set(p.own - bytes)
	}
}

// set changes what the place has. Room.mu must be locked.
func (p *Place) set(own int64) {
	r, change := p.room, counted(own)-counted(p.own)
	p.own = own
	if change == 0 {
		return
	}
	if p.element == nil {
		if p.user = r.users[p.name]; p.user == nil {
			p.user = new(share)
			r.users[p.name] = p.user
		}
		p.element = p.user.places[p.state].PushBack(p)
	}
	r.used += change
	p.user.bytes += change
	if counted(own) == 0 {
		p.user.places[p.state].Remove(p.element)
		p.element = nil
		if p.user.bytes == 0 {
			delete(r.users, p.name)
		}
	}
}

// counted returns how many of the bytes of a place count.
func counted(own int64) int64 { return max(0, own-Assured) }
