package server

import "sync"

// nameLocks is a lock for each client id, so that connections of one name are
// established one after the other. Client ids that can own the same topics share a lock,
// so that a server which has looked whether an id collides with that of another client
// can rely on the answer until the client is entered. Locks exist only while a connection
// has or wants them. The zero value is ready.
type nameLocks struct {
	mu    sync.Mutex
	names map[string]*nameLock
}

type nameLock struct {
	sync.Mutex
	users int // connections that have it or wait for it; guarded by nameLocks.mu
}

// lock waits for the lock on a client id and returns the function that gives it back.
func (n *nameLocks) lock(client string) (release func()) {
	name := rootName(client)
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
	return func() { n.release(name, l) }
}

// tryLock is lock for a caller that must not wait. It reports false if the lock is not
// free.
func (n *nameLocks) tryLock(client string) (release func(), ok bool) {
	name := rootName(client)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names[name] != nil {
		return nil, false
	}
	if n.names == nil {
		n.names = make(map[string]*nameLock)
	}
	l := &nameLock{users: 1}
	l.Lock() // no other goroutine knows it
	n.names[name] = l
	return func() { n.release(name, l) }, true
}

func (n *nameLocks) release(name string, l *nameLock) {
	l.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(n.names, name)
	}
}

// rootName undoes the upper-case hex of a client id as often as there is any: "3730" and
// "70" have the root "p". Clients that own the same level below clients/ have the same
// root; not all that have the same root own the same level.
func rootName(client string) string {
	for {
		decoded, isHex := fromHex(client)
		if !isHex {
			return client
		}
		client = decoded
	}
}
