package server

import "sync"

// nameLocks is a lock for each client id, so that connections of one name are
// established one after the other. Locks exist only while somebody has or wants
// them. The zero value is ready.
type nameLocks struct {
	mu    sync.Mutex
	names map[string]*nameLock
}

type nameLock struct {
	sync.Mutex
	users int // who have it or wait for it; guarded by nameLocks.mu
}

// lock waits for the lock on a name and returns the function that gives it back.
func (n *nameLocks) lock(name string) (release func()) {
	n.mu.Lock()
	if n.names == nil {
		n.names = make(map[string]*nameLock)
	}
	l := n.names[name]
	if l == nil {
		l = new(nameLock)
		n.names[name] = l
	}
	l.users++
	n.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		n.mu.Lock()
		defer n.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(n.names, name)
		}
	}
}
