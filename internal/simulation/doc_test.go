// Package simulation lets a few nodes contend for a lease for an hour of virtual time,
// under faults that follow a seed, and judges what they believe by what the store did.
//
//	go test ./internal/simulation               # some hundred seeds; -short: a few
//	go test ./internal/simulation -seeds 5000   # so many
//	go test ./internal/simulation -v -seed 17   # this one, with its trace
//
// What runs is the real thing: transport.Client, lease, fencing and election over
// package transporttest, three to five nodes with clocks of their own. What goes wrong is in
// faults.go, what must hold all the same in checker.go.
//
// # The hour
//
//	0 ─────────────── faults, one every half minute or so ─────────────── calm ── last ── end
//	                                                          57 min ─────┘        │
//	                                      somebody must lead by calmWithin         │
//	                   the leader crashes, is cut off or resigns: 58 min ──────────┘
//	                   somebody must lead by TTL + Jitter (+ slack), and nobody else until the end
//
// # Replay
//
// All that is random follows the seed: the faults and the nodes by generators of their own,
// the library's jitter by internal/random, the pauses of package backoff by the global
// generator of math/rand. Each message takes a time of its own, to the nanosecond, so that
// hardly two events share an instant, and its fate from dice of its kind, so that it does
// not matter which of two messages of one instant leaves first. For what is left the test
// runs on one processor, with the garbage collector off while a seed runs.
// TestASeedReplays counts how many seeds repeat their trace, but for the order within an
// instant.
//
// What nobody can steer: the runtime interrupts a goroutine that has had the processor for
// ten milliseconds of real time, which on a machine that is overloaded may be at any
// moment; of several goroutines that are ready at that instant another goes first then. A
// select of which two cases are ready, and timers that end at the same instant, choose by
// chance too. So a few seeds in a hundred replay only when run again, on a machine with
// nothing else to do hardly any. The race detector shuffles goroutines on purpose: what it
// finds need not replay.
//
// The nonces of tenures are random for real; in a trace they have numbers.
package simulation
