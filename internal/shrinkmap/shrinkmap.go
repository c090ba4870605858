// Package shrinkmap has a map that gives memory back, which Go's maps do not.
package shrinkmap

import "maps"

// Map is such a map. The zero Map is empty.
type Map[K comparable, V any] struct {
	All  map[K]V // to be read only
	most int     // how many entries All has had
}

// kept is how many entries the smallest map of Go has room for.
const kept = 8

// Set adds an entry, or replaces its value.
func (m *Map[K, V]) Set(key K, value V) {
	if m.All == nil {
		m.All = make(map[K]V)
	}
	m.All[key] = value
	m.most = max(m.most, len(m.All))
}

// Delete removes an entry. A loop over All may go on, and misses what is added from then on.
func (m *Map[K, V]) Delete(key K) {
	delete(m.All, key)
	if left := len(m.All); m.most > kept && 8*left < m.most {
		all := make(map[K]V, left)
		maps.Copy(all, m.All)
		m.All, m.most = all, left
	}
}
