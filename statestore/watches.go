package statestore

import (
	"slices"
	"strings"
)

// watchCost is what a watch counts for beside the length of its key: about what the maps
// and lists of watches take up for it.
const watchCost = 256

// assuredWatchBytes is what the watches of a client may take up whatever others watch: some
// sixty keys. Without it, a few clients that watch all they can would keep all others from
// following a lock.
const assuredWatchBytes = 16 << 10

// watches remembers who watches what. Watchers of a key are kept in the order in which
// they registered, so that the same commands always notify in the same order.
//
// Every change takes about the same time, however many watches there are: a client with a
// million watches, and a key with ten thousand watchers, cost others nothing. So a watch
// that ends leaves a gap in the list of its key, and a client that is forgotten is marked
// at once and taken out of the lists little by little (see sweep).
type watches struct {
	byKey    map[string]*watched
	byClient map[string]*watcher
	leaving  *watcher // forgotten, and not yet taken out of all lists
	count    int
	bytes    int64 // of all watches, those of leaving clients included
}

// watched is a key with watchers.
type watched struct {
	key      string
	watchers []registration // in order; the zero value where a watch ended
	gaps     int
}

// registration is a watch as its key sees it. The watcher is beside the watch because
// notify needs it, and memory is slow.
type registration struct {
	watcher *watcher
	watch   *watch
}

// watcher is a client with watches.
type watcher struct {
	client string
	keys   map[string]*watch
	all    []*watch // the same, to be taken out one after the other
	bytes  int64
	gone   bool     // forgotten: it is not notified any more
	next   *watcher // in watches.leaving
}

// watch is one client's watch of one key.
type watch struct {
	watcher  *watcher
	watched  *watched
	position int // in watched.watchers
	index    int // in watcher.all
}

func (x *watch) bytes() int64 { return int64(len(x.watched.key)) + watchCost }

func newWatches() watches {
	return watches{byKey: make(map[string]*watched), byClient: make(map[string]*watcher)}
}

// add begins one watch, unless a limit stands against it.
func (w *watches) add(client, key string, options *Options) bool {
	by := w.byClient[client]
	if by == nil {
		by = &watcher{client: strings.Clone(client), keys: make(map[string]*watch)}
	}
	if by.keys[key] != nil {
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
	of.watchers = append(of.watchers, registration{by, x})
	by.keys[of.key] = x // not the key that came: one copy of a long key is enough for all
	by.all = append(by.all, x)
	by.bytes += cost
	w.byClient[by.client] = by
	w.count++
	w.bytes += cost
	return true
}

// leavesNoRoom reports whether a client, that would have so many bytes of watches with a new
// one, would have more than is then left for all others together.
func (w *watches) leavesNoRoom(own, cost, limit int64) bool {
	return limit > 0 && own > max(assuredWatchBytes, limit-w.bytes-cost)
}

// exceeds reports whether something is above a limit; 0 is none.
func exceeds(size, limit int64) bool { return limit > 0 && size > limit }

// remove ends one watch and reports whether there was one.
func (w *watches) remove(client, key string) bool {
	by := w.byClient[client]
	if by == nil || by.keys[key] == nil {
		return false
	}
	x := by.keys[key]
	delete(by.keys, key)
	w.take(x)
	if len(by.all) == 0 {
		delete(w.byClient, client)
	}
	return true
}

// disconnect ends all watches of a client: from now on none notifies it. sweep frees what they
// take up.
func (w *watches) disconnect(client string) {
	by := w.byClient[client]
	if by == nil {
		return
	}
	delete(w.byClient, client)
	by.gone, by.keys = true, nil
	by.next, w.leaving = w.leaving, by
}

// sweep takes up to limit watches of forgotten clients out, and reports whether there are
// more.
func (w *watches) sweep(limit int) (more bool) {
	for ; w.leaving != nil; w.leaving = w.leaving.next {
		for all := &w.leaving.all; len(*all) > 0; limit-- {
			if limit <= 0 {
				return true
			}
			w.take((*all)[len(*all)-1])
		}
	}
	return false
}

// take takes a watch out of both lists.
func (w *watches) take(x *watch) {
	w.count--
	w.bytes -= x.bytes()

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

// compact closes the gaps. Between two times as many watches end as are left, so that it
// costs each of them little.
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

// notify appends a notification of a change for each watcher of its key.
func (w *watches) notify(to []Notification, change Change) []Notification {
	if len(w.byKey) == 0 {
		return to // a lookup is not free, and most stores have few watchers
	}
	of := w.byKey[change.Key]
	if of == nil {
		return to
	}
	shared := new(Change) // not &change, which would allocate where no client watches
	*shared = change
	to = slices.Grow(to, len(of.watchers)-of.gaps)
	for _, r := range of.watchers {
		if r.watcher != nil && !r.watcher.gone {
			to = append(to, Notification{Client: r.watcher.client, Change: shared})
		}
	}
	return to
}
