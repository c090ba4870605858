package statestore

import (
	"strings"

	"github.com/tenurelock/tenure/internal/shrinkmap"
)

const (
	// watchCost is the memory that a watch counts for besides the length of its key: about
	// what it takes in the maps and lists.
	watchCost = 256
	// assuredWatchBytes is the memory that the watches of a client may use whatever others
	// watch: about sixty keys. Without it, a few clients could keep all others from
	// watching a lock.
	assuredWatchBytes = 16 << 10
)

// watches holds all watches. The watchers of a key are in the order of their registration,
// so that the same commands always notify in the same order.
//
// The time of an operation does not depend on the number of watches of a client or of a key.
// So a client that disconnects is marked at once and removed from the lists step by step (see sweep).
type watches struct {
	byKey    map[string]*watched
	byClient map[string]*watcher
	leaving  []*watcher // disconnected clients that are still in some lists
	count    int
	bytes    int64 // of all watches, including watches of leaving clients
}

// watched is a key with watchers.
type watched struct {
	key     string
	ring    watch // begins and ends the list of watches, and is none
	waiting int   // how many of them wait for the lease
}

// watcher is a client with watches.
type watcher struct {
	client string
	keys   shrinkmap.Map[string, *watch]
	bytes  int64
	gone   bool // disconnected: it gets no notification
}

// watch is one client's watch of one key.
type watch struct {
	watcher        *watcher
	watched        *watched
	next, previous *watch // in the list of the key
	dialect        Dialect
	waits          bool // the client waits for the lease with that key; it is only shown
}

// wait says whether the client waits for the lease. A nil watch is none.
func (x *watch) wait(does bool) {
	switch {
	case x == nil || x.waits == does:
		return
	case does:
		x.watched.waiting++
	default:
		x.watched.waiting--
	}
	x.waits = does
}

// find returns the watch of a client on a key; nil: it has none.
func (w *watches) find(client, key string) *watch {
	if by := w.byClient[client]; by != nil {
		return by.keys.All[key]
	}
	return nil
}

func costOf(key string) int64 { return int64(len(key)) + watchCost }

// add begins a watch, and reports whether the limits allow it. The dialect of the latest KEYNOTIFY counts, and
// whether the client waits.
func (w *watches) add(client, key string, dialect Dialect, waits bool, options *Options) bool {
	by := w.byClient[client]
	if by == nil {
		by = &watcher{client: strings.Clone(client)}
	}
	x := by.keys.All[key]
	if x == nil {
		cost := costOf(key)
		if exceeds(int64(len(by.keys.All))+1, int64(options.MaxWatches)) ||
			exceeds(by.bytes+cost, options.MaxWatchBytes) || w.leavesNoRoom(by.bytes+cost, cost, options.MaxAllWatchBytes) {
			return false
		}
		of := w.byKey[key]
		if of == nil {
			of = &watched{key: key}
			of.ring.next, of.ring.previous = &of.ring, &of.ring
			w.byKey[key] = of
		}
		x = &watch{watcher: by, watched: of, next: &of.ring, previous: of.ring.previous}
		x.previous.next, of.ring.previous = x, x
		by.keys.Set(of.key, x) // not key: all watchers share one copy of a long key
		by.bytes += cost
		w.byClient[by.client] = by
		w.count++
		w.bytes += cost
	}
	x.dialect = dialect
	x.wait(waits)
	return true
}

// leavesNoRoom reports whether a client with watches that would use own bytes with a new one
// would then use more than is left for all others together.
func (w *watches) leavesNoRoom(own, cost, limit int64) bool {
	return limit > 0 && own > max(assuredWatchBytes, limit-w.bytes-cost)
}

// exceeds reports whether size is above limit; a limit of 0 means no limit.
func exceeds(size, limit int64) bool { return limit > 0 && size > limit }

// remove ends a watch.
func (w *watches) remove(x *watch) {
	x.wait(false)
	by, of := x.watcher, x.watched
	w.count--
	w.bytes -= costOf(of.key)
	by.bytes -= costOf(of.key)
	x.previous.next, x.next.previous = x.next, x.previous
	if of.ring.next == &of.ring {
		delete(w.byKey, of.key)
	}
	by.keys.Delete(of.key)
	if len(by.keys.All) == 0 && !by.gone {
		delete(w.byClient, by.client)
	}
}

// disconnect ends all watches of a client. sweep frees their memory.
func (w *watches) disconnect(client string) {
	if by := w.byClient[client]; by != nil {
		delete(w.byClient, client)
		by.gone = true
		w.leaving = append(w.leaving, by)
	}
}

// sweep removes up to limit watches of disconnected clients, and reports whether there are
// more. It calls ended for each one before.
func (w *watches) sweep(limit int, ended func(*watch)) (more bool) {
	for ; len(w.leaving) > 0; w.leaving = w.leaving[1:] {
		for _, x := range w.leaving[0].keys.All {
			if limit--; limit < 0 {
				return true
			}
			ended(x)
			w.remove(x)
		}
	}
	w.leaving = nil
	return false
}

// notify adds a notification of a change for each watcher of its key.
func (w *watches) notify(effects *Effects, change Change) {
	if len(w.byKey) == 0 {
		return // without a lookup: most stores have few watchers
	}
	of := w.byKey[change.Key]
	if of == nil {
		return
	}
	shared := new(Change) // &change would allocate even if no client watches the key
	*shared = change
	for x := of.ring.next; x != &of.ring; x = x.next {
		if !x.watcher.gone {
			to := Notification{Client: x.watcher.client, Dialect: x.dialect, Change: shared}
			effects.Notifications = append(effects.Notifications, to)
		}
	}
}
