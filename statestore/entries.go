package statestore

import (
	"hash/maphash"
	"iter"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// entry is a key with its value. Among a million keys, a renewal spends most of its time waiting for
// memory. So an entry is small, and key and value lie beside each other.
type entry struct {
	text     string // the key and the value
	keyBytes int    // of text
	version  stamp
	token    stamp // of the fence; zero: the key is not protected
	// lifetime is what a journal has; zero: the key does not expire. The lifetimes of
	// renewals are not longer.
	lifetime time.Duration

	// Of a key that expires; next is nil otherwise.
	deadline       time.Duration // on Instant.Elapsed
	filed          tick          // under which it is filed in expiries; not later than the deadline's
	next, previous *entry        // in the list of that tick
}

// newEntry returns the entry of a key with an empty value.
func newEntry(key string) *entry { return &entry{text: key, keyBytes: len(key)} }

func (e *entry) key() string   { return e.text[:e.keyBytes] }
func (e *entry) value() string { return e.text[e.keyBytes:] }
func (e *entry) size() int64   { return int64(len(e.text)) }

// fence returns the token without which nothing can write to the key; zero: none.
func (e *entry) fence() hlc.Token { return hlc.Token(e.token.timestamp()) }

// entries are the keys that a store has.
//
// The map has hashes and not keys: then it is smaller, and a lookup reads no copy of the key beside
// the entry. Two keys with one hash are so rare that the second may be found slowly. Clients cannot
// bring them about, since they do not know the seed.
type entries struct {
	seed    maphash.Seed
	ignored uint64 // bits of the hash; a test sets them, so that hashes collide
	byHash  map[uint64]*entry
	others  map[string]*entry // keys whose hash another key had when they were added
}

func newEntries() entries {
	return entries{seed: maphash.MakeSeed(), byHash: make(map[uint64]*entry), others: make(map[string]*entry)}
}

func (x *entries) hash(key string) uint64 { return maphash.String(x.seed, key) &^ x.ignored }

func (x *entries) count() int { return len(x.byHash) + len(x.others) }

// find returns the entry of a key, or nil.
func (x *entries) find(key string) *entry {
	e := x.byHash[x.hash(key)]
	if e != nil && e.key() == key {
		return e
	}
	if len(x.others) > 0 {
		return x.others[key]
	}
	return nil
}

// add adds an entry whose key is not there yet.
func (x *entries) add(e *entry) {
	key := e.key()
	hash := x.hash(key)
	if x.byHash[hash] == nil {
		x.byHash[hash] = e
	} else {
		x.others[key] = e
	}
}

// setValue sets the value of an entry that is there.
func (x *entries) setValue(e *entry, value []byte) {
	var text strings.Builder
	text.Grow(e.keyBytes + len(value))
	text.WriteString(e.key())
	text.Write(value)
	e.text = text.String()
	if len(x.others) > 0 && x.others[e.key()] == e {
		x.others[e.key()] = e // with the new text as the key, or the map would keep the old one
	}
}

// remove removes an entry that is there.
func (x *entries) remove(e *entry) {
	hash := x.hash(e.key())
	if x.byHash[hash] == e {
		delete(x.byHash, hash)
	} else {
		delete(x.others, e.key())
	}
}

// all returns the entries in any order.
func (x *entries) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, e := range x.byHash {
			if !yield(e) {
				return
			}
		}
		for _, e := range x.others {
			if !yield(e) {
				return
			}
		}
	}
}
