package statestore

import "slices"

// watches remembers who watches what. Watchers of a key are kept in the order
// in which they registered, so that the same commands always notify in the same
// order.
type watches struct {
	byKey    map[string][]string
	byClient map[string]map[string]struct{}
}

func newWatches() watches {
	return watches{byKey: make(map[string][]string), byClient: make(map[string]map[string]struct{})}
}

// add begins one watch, unless the client would then have more than limit; 0
// means no limit.
func (w *watches) add(client, key string, limit int) bool {
	keys := w.byClient[client]
	if _, watching := keys[key]; watching {
		return true
	}
	if limit > 0 && len(keys) >= limit {
		return false
	}
	if keys == nil {
		keys = make(map[string]struct{})
		w.byClient[client] = keys
	}
	keys[key] = struct{}{}
	w.byKey[key] = append(w.byKey[key], client)
	return true
}

// remove ends one watch and reports whether there was one.
func (w *watches) remove(client, key string) bool {
	keys := w.byClient[client]
	if _, watching := keys[key]; !watching {
		return false
	}
	delete(keys, key)
	if len(keys) == 0 {
		delete(w.byClient, client)
	}
	clients := w.byKey[key]
	clients = slices.DeleteFunc(clients, func(watcher string) bool { return watcher == client })
	if len(clients) == 0 {
		delete(w.byKey, key)
	} else {
		w.byKey[key] = clients
	}
	return true
}

func (w *watches) forget(client string) {
	for key := range w.byClient[client] {
		w.remove(client, key)
	}
}

// notify appends one copy of the notification for each watcher of its key.
func (w *watches) notify(to []Notification, template Notification) []Notification {
	if len(w.byKey) == 0 {
		return to // a lookup is not free, and most stores have few watchers
	}
	for _, client := range w.byKey[template.Key] {
		template.Client = client
		to = append(to, template)
	}
	return to
}
