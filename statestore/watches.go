package statestore

import (
	"slices"
	"strings"
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
// So a watch that ends leaves a gap in the list of its key, and a client that disconnects is
// marked at once and removed from the lists step by step (see sweep).
type watches struct {
	byKey    map[string]*watched
	byClient map[string]*watcher
	leaving  *watcher // disconnected clients that are still in some lists
	count    int
	bytes    int64 // of all watches, including watches of leaving clients
}

// watched is a key with watchers.
type watched struct {
	key      string
	watchers []registration // in order; the zero value for a watch that ended
	gaps     int
	waiting  waits
}

// registration is a watch in the list of its key, with the watcher, so that notify need not
// read the watch from memory.
type registration struct {
	watcher *watcher
	watch   *watch
	dialect Dialect
}

// watcher is a client with watches.
type watcher struct {
	client string
	keys   map[string]*watch
	all    []*watch // the same watches, from which sweep takes one after the other
	bytes  int64
	gone   bool     // disconnected: it gets no notification
	next   *watcher // in watches.leaving
}

// watch is one client's watch of one key.
type watch struct {
	watcher  *watcher
	watched  *watched
	position int // in watched.watchers
	index    int // in watcher.all
	waiting  waits
}

// waits is how many clients wait for the lease whose key they watch: of a watch 0 or 1. It is only shown.
type waits struct{ count int }

// wait says whether the client waits for the lease. A nil watch is none.
func (x *watch) wait(does bool) {
	if x == nil || does == (x.waiting.count > 0) {
		return
	}
	change := 1 - 2*x.waiting.count
	x.waiting.count += change
	x.watched.waiting.count += change
}

// find returns the watch of a client on a key; nil: it has none.
func (w *watches) find(client, key string) *watch {
	if by := w.byClient[client]; by != nil {
		return by.keys[key]
	}
	return nil
}

func (x *watch) bytes() int64 { return int64(len(x.watched.key)) + watchCost }

// add begins a watch, and reports whether the limits allow it. The dialect of the latest KEYNOTIFY counts, and
// whether the client waits.
func (w *watches) add(client, key string, dialect Dialect, waits bool, options *Options) bool {
	by := w.byClient[client]
	if by == nil {
		by = &watcher{client: strings.Clone(client), keys: make(map[string]*watch)}
	}
	if known := by.keys[key]; known != nil {
		known.watched.watchers[known.position].dialect = dialect
		known.wait(waits)
		return true
	}
	cost := int64(len(key)) + watchCost
	if exceeds(int64(len(by.all))+1, int64(options.MaxWatches)) ||
		exceeds(by.bytes+cost, options.MaxWatchBytes) || w.leavesNoRoom(by.bytes+cost, cost, options.MaxAllWatchBytes) {
		return false
	}
	of := w.byKey[key]
	if of == nil {
		of = &watched{key: key}
		w.byKey[key] = of
	}
	x := &watch{watcher: by, watched: of, position: len(of.watchers), index: len(by.all)}
	of.watchers = append(of.watchers, registration{by, x, dialect})
	x.wait(waits)
	by.keys[of.key] = x // not key: all watchers share one copy of a long key
	by.all = append(by.all, x)
	by.bytes += cost
	w.byClient[by.client] = by
	w.count++
	w.bytes += cost
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
	by := x.watcher
	delete(by.keys, x.watched.key)
	w.take(x)
	if len(by.all) == 0 {
		delete(w.byClient, by.client)
	}
}

// disconnect ends all watches of a client. sweep frees their memory.
func (w *watches) disconnect(client string) {
	by := w.byClient[client]
	if by == nil {
		return
	}
	delete(w.byClient, client)
	by.gone, by.keys = true, nil
	by.next, w.leaving = w.leaving, by
}

// sweep removes up to limit watches of disconnected clients, and reports whether there are
// more. It calls ended for each one before.
func (w *watches) sweep(limit int, ended func(*watch)) (more bool) {
	for ; w.leaving != nil; w.leaving = w.leaving.next {
		for all := &w.leaving.all; len(*all) > 0; limit-- {
			if limit <= 0 {
				return true
			}
			x := (*all)[len(*all)-1]
			ended(x)
			w.take(x)
		}
	}
	return false
}

// take removes a watch from the lists of its client and its key.
func (w *watches) take(x *watch) {
	w.count--
	w.bytes -= x.bytes()
	x.wait(false)

	by := x.watcher
	by.bytes -= x.bytes()
	last := len(by.all) - 1
	moved := by.all[last]
	by.all[x.index], moved.index = moved, x.index
	by.all[last] = nil
	by.all = by.all[:last]

	of := x.watched
	of.watchers[x.position] = registration{}
	of.gaps++
	switch {
	case of.gaps == len(of.watchers):
		delete(w.byKey, of.key)
	case of.gaps > len(of.watchers)/2:
		of.compact()
	}
}

// compact closes the gaps. It runs again only after as many watches have ended as are left.
func (of *watched) compact() {
	left := make([]registration, 0, len(of.watchers)-of.gaps)
	for _, r := range of.watchers {
		if r.watch != nil {
			r.watch.position = len(left)
			left = append(left, r)
		}
	}
	of.watchers, of.gaps = left, 0
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
	shared.Key = of.key // a receiver that keeps it does not keep the value of an entry that is gone
	to := slices.Grow(effects.Notifications, len(of.watchers)-of.gaps)
	for _, r := range of.watchers {
		if r.watcher != nil && !r.watcher.gone {
			to = append(to, Notification{Client: r.watcher.client, Dialect: r.dialect, Change: shared})
		}
	}
	effects.Notifications = to
}
