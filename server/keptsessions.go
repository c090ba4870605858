package server

import "github.com/tenurelock/tenure/server/access"

// keptSessions are the sessions of clients that are not connected, so that one user cannot
// have too many.
type keptSessions struct {
	user  map[string]string // by client id
	count map[string]int    // by user
}

func newKeptSessions() keptSessions {
	return keptSessions{user: make(map[string]string), count: make(map[string]int)}
}

// add notes a session, unless its user has limit of them.
func (k *keptSessions) add(who access.Identity, limit int) bool {
	if _, ok := k.user[who.Client]; ok {
		return true
	}
	if k.count[who.User] >= limit {
		return false
	}
	k.user[who.Client] = who.User
	k.count[who.User]++
	return true
}

// remove forgets a session, if there is one.
func (k *keptSessions) remove(client string) {
	user, ok := k.user[client]
	if !ok {
		return
	}
	delete(k.user, client)
	if k.count[user]--; k.count[user] == 0 {
		delete(k.count, user)
	}
}
