package main

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// An attack is a program that misuses a running server.
type attack struct {
	// name is a few words. what is a sentence with the attacker as its subject.
	name, what string
	// limit says what must hold beyond what always must: the server lives, the healthy
	// client keeps its lease, and the memory comes back.
	limit string

	// users makes the server check passwords, with a bcrypt cost of 10 where costly, and
	// else with the least there is.
	users, costly bool
	// rules are rules of the file with users, in YAML; none allows everything.
	rules string
	// key is the key of the server's certificate, P-256 or RSA-4096; none: there is no TLS.
	key string
	// clientCA makes a server with TLS ask clients for certificates, which its own has to have signed.
	clientCA bool
	// serve are more flags for `tenure serve`.
	serve []string
	// commit is how long each commit of the store takes besides what a file takes; 0: the store is
	// in memory.
	commit time.Duration
	// files is how many file descriptors the server may have; 0: no limit.
	files int

	// p99 is how long one in a hundred renewals of the healthy client may take during the
	// attack; 0: 50 ms.
	p99 time.Duration
	// change is the same for changes, of a server with commit; 0: they are not measured.
	change time.Duration
	// memory is how many MiB the server may take at its peak beyond what it had before;
	// 0: 64.
	memory int64
	// log is how many KiB the server may write to its log; 0: 256.
	log int64

	// run attacks and returns when it is over, or soon after ctx has ended. Connections
	// that it leaves open end with the process.
	run func(ctx context.Context, t *target)
}

// attacks returns all attacks, in the order of the table.
func attacks() []attack {
	return slices.Concat(packetAttacks, loginAttacks, encryptedAttacks, subscriptionAttacks, memoryAttacks, socketAttacks, fillAttacks, fairnessAttacks, nameAttacks, combinedAttacks, journalAttacks)
}

const (
	defaultP99    = 50 * time.Millisecond
	defaultMemory = 64
	defaultLog    = 256
)

func (a attack) completed() attack {
	a.p99 = cmp.Or(a.p99, defaultP99)
	a.memory = cmp.Or(a.memory, defaultMemory)
	a.log = cmp.Or(a.log, defaultLog)
	a.users = a.users || a.costly || a.rules != ""
	return a
}

// The users of a server with passwords.
const (
	healthyUser     = "healthy"
	healthyPassword = "the password of the healthy client"
	malloryUser     = "mallory"
	malloryPassword = "the password of mallory"
)
