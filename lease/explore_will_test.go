package lease

import "slices"

// Scopes with Wills: each attempt has a connection of its own, whose end ends the attempt or the tenure, and makes the server
// delete its value. What the server knows of the end may be late (strays), or never come: then the TTL decides.
//
// The server applies what it has read of a connection, and then the Will, before it reads the next connection of the same client.

// promptly is the patience where a Will frees the lease: a timeout and a pause, for what was sent over a connection that has ended.
const promptly = 2

// ends adds what ends the connection of a holder. With a Will B is how many of its requests arrive before that,
// and 8 more if the answers that are under way arrive too. Both ends of such a connection hear of it, the holder before it
// does anything else. If only the server does, or the holder stands still, two may believe that they have the lease: docs/adr/0005
// says so, and no walk could show anything else.
func (w *world) ends(i int, fault func(kind uint8, a, b int)) {
	h := &w.holders[i]
	if !w.willed {
		fault(crashes, i, 0)
		fault(cuts, i, 0)
		return
	}
	if h.frozen {
		return
	}
	arrive := 0
	for _, r := range w.requests {
		if r.value.holder == h.id && !r.late && !r.ended {
			arrive++
		}
	}
	for n := range arrive + 1 {
		fault(crashes, i, n)
		fault(cuts, i, n)
		if slices.ContainsFunc(w.replies, func(r reply) bool { return r.holder == h.id }) {
			fault(cuts, i, n+8)
		}
	}
}

// sever ends a connection: see ends.
func (w *world) sever(h *holder, arrive int, answered bool) {
	w.requests = slices.DeleteFunc(w.requests, func(r request) bool {
		if r.value.holder != h.id || r.late || r.ended {
			return false
		}
		arrive--
		return arrive < 0
	})
	for i := range w.requests {
		r := &w.requests[i]
		r.ended = r.ended || r.value.holder == h.id
	}
	if h.willed {
		h.willed, h.lost = false, true
		w.requests = append(w.requests, request{kind: wills, value: h.value(), ended: true})
	}
	if h.gone = h.underWay; !answered {
		w.replies = slices.DeleteFunc(w.replies, func(r reply) bool { return r.holder == h.id })
		h.hint = hint{}
	}
}
