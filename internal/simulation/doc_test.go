// Package simulation lets a few nodes contend for a lease for an hour of virtual time,
// under faults that follow a seed, and checks what they believe against what the store did.
//
//	go test ./internal/simulation               # a few seeds; LONG_TESTS=1: 150
//	go test ./internal/simulation -seeds 5000   # so many
//	go test ./internal/simulation -v -seed 17   # this one, with its trace
//
// The code under test is the real one: transport.Client, lease, fencing and election over
// package transporttest. Three to five nodes run, with clocks of their own. The faults are
// the tables in faults_test.go; what a message may meet is in network_test.go. What must hold is
// in checker_test.go: applied_test.go checks what the store did, and requests_test.go what a
// process sent and got.
//
// There is no MQTT here, and so no CONNECT that is handled late, and no Receive Maximum.
//
// In the seeds with an even number the store has a journal, crashes within commits of which some
// groups are kept, and starts again, sometimes on a machine with another clock. It may be cut off
// from its journal, and answer from memory, until another one takes over; or find its disk full.
// In every fourth seed the disk is lost at times, and a backup restored.
// In the seeds with an odd number the store is in memory.
//
// # The hour
//
//	0 ─────────────── faults, one every half minute or so ─────────────── calm ── last ── end
//	                                                          57 min ─────┘        │
//	                                        a node must lead by calmWithin         │
//	                   the leader crashes, is cut off or resigns: 58 min ──────────┘
//	                   a node must lead by TTL + Jitter (+ slack), and no other node until the end
//
// # Replay
//
// All that is random follows the seed. The faults and the nodes have generators of their
// own, the library's jitter comes from internal/random, and the pauses of package backoff
// from the global generator of math/rand. Each message takes a time of its own, to the
// nanosecond, so that hardly two events share an instant. Its faults come from dice of its
// kind, so it does not matter which of two messages of one instant leaves first. For the
// rest, the test runs on one processor, with the garbage collector off while a seed runs.
// Nearly every seed repeats its trace, but for the order within an instant.
//
// Three things cannot be steered. The runtime interrupts a goroutine that has had the
// processor for ten milliseconds of real time, which can happen at any moment on a machine
// that is overloaded; then another of the goroutines that are ready goes first. A select
// with two cases that are ready chooses at random. So do timers that end at the same
// instant. So a few seeds in a hundred replay only in a second run, on an idle machine
// hardly any. The race detector shuffles goroutines on purpose: what it finds need not
// replay.
//
// The nonces of tenures are always random; in a trace they have numbers.
package simulation
