package statestore

import (
	"fmt"
	"testing"
	"time"
)

// Benchmarks run over as many keys as a large site has leases.
const benchmarkKeys = 100_000

// benchmarkStore returns a store with a lease under each key, all of which end a
// minute after the Instant, and the payloads that renew them.
func benchmarkStore(b *testing.B) (*Store, Instant, [][]byte) {
	b.Helper()
	w := newWorld(b, Options{})
	payloads := make([][]byte, benchmarkKeys)
	for i := range payloads {
		payloads[i] = []byte(payload("SET", fmt.Sprintf("lease-%06d", i), "gateway-a/0123456789", "NEX", "PX", "60000"))
		benchmarkApply(b, w.store, w.now, payloads[i], OK)
	}
	return w.store, w.now, payloads
}

var benchmarkTimestamp = "001696374425000:00000:gateway-a"

func benchmarkApply(b *testing.B, store *Store, now Instant, payload []byte, want Outcome) Reply {
	command := Parse(Request{Client: "gateway-a", Payload: payload, Timestamp: &benchmarkTimestamp})
	reply, _ := store.Apply(now, command)
	if reply.Outcome != want {
		b.Fatalf("%q: got %v, %v", payload, reply.Outcome, reply.Err)
	}
	return reply
}

func BenchmarkRenew(b *testing.B) {
	store, now, payloads := benchmarkStore(b)
	var answer []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now.Elapsed += time.Microsecond
		answer = benchmarkApply(b, store, now, payloads[i%benchmarkKeys], OK).Append(answer[:0], Deployed)
	}
}

func BenchmarkGet(b *testing.B) {
	store, now, _ := benchmarkStore(b)
	payloads := make([][]byte, benchmarkKeys)
	for i := range payloads {
		payloads[i] = []byte(payload("GET", fmt.Sprintf("lease-%06d", i)))
	}
	var answer []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		answer = benchmarkApply(b, store, now, payloads[i%benchmarkKeys], Found).Append(answer[:0], Deployed)
	}
}

// BenchmarkExpire measures the removal of all keys that fall due at once, in batches
// as package engine makes them.
func BenchmarkExpire(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		b.StopTimer()
		store, now, _ := benchmarkStore(b)
		now.Elapsed += time.Minute
		b.StartTimer()
		for more := true; more; {
			_, more = store.Expire(now, 256)
		}
		if store.Len() != 0 {
			b.Fatalf("%d keys are left", store.Len())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchmarkKeys, "ns/key")
}
