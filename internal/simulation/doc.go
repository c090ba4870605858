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
// not matter which of two messages of one instant leaves first; for what is left the test
// runs on one processor, with the garbage collector off while a seed runs. What cannot be steered is the choice of a
// select of which two cases are ready, and of timers that end at the same instant.
// TestASeedReplays counts how many seeds repeat their trace to the letter, but for the order within an instant: when it was
// written, each of a hundred, in the same process and in another, on a busy machine too. The
// race detector shuffles goroutines on purpose, so what it finds need not replay.
//
// The nonces of tenures are random for real; in a trace they have numbers.
package simulation
