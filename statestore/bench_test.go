package statestore

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Benchmarks run over as many keys as a very large site has leases.
const benchmarkKeys = 1_000_000

// stride visits the keys in an order that caches cannot guess. It has no divisor in
// common with their number, so it visits all of them.
const stride = 611_953

var benchmarkTimestamp = "001696374425000:00000:gateway-a"

func benchmarkKey(i int) string { return fmt.Sprintf("lease-%07d", i) }

func renewal(i int) []byte {
	return []byte(payload("SET", benchmarkKey(i), "gateway-a/0123456789", "NEX", "PX", "60000"))
}

// benchmarkStore returns a store with a lease under each key, all of which end a
// minute after the Instant.
func benchmarkStore(b *testing.B) (*Store, Instant) {
	b.Helper()
	w := newWorld(b, Options{})
	for i := range benchmarkKeys {
		benchmarkApply(b, w.store, w.now, Request{Payload: renewal(i)}, OK)
	}
	return w.store, w.now
}

func benchmarkApply(b *testing.B, store *Store, now Instant, request Request, want Outcome) Reply {
	request.Client, request.Timestamp = "gateway-a", &benchmarkTimestamp
	reply, _ := store.Apply(now, Parse(request))
	if reply.Outcome != want {
		b.Fatalf("%q: got %v, %v", request.Payload, reply.Outcome, reply.Err)
	}
	return reply
}

// benchmarkRequests measures requests for random keys: parsed, applied, and the reply
// encoded.
func benchmarkRequests(b *testing.B, want Outcome, payload func(i int) []byte, correlations [][]byte) {
	store, now := benchmarkStore(b)
	payloads := make([][]byte, benchmarkKeys)
	for i := range payloads {
		payloads[i] = payload(i * stride % benchmarkKeys)
	}
	var answer []byte
	runtime.GC()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now.Elapsed += time.Microsecond
		request := Request{Payload: payloads[i%benchmarkKeys]}
		if correlations != nil {
			request.Correlation = correlations[i%len(correlations)]
		}
		answer = benchmarkApply(b, store, now, request, want).Append(answer[:0], Deployed)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

func BenchmarkRenew(b *testing.B) { benchmarkRequests(b, OK, renewal, nil) }

// BenchmarkRenewRemembered is what a server does: each request has correlation data, and
// the reply to it is remembered.
func BenchmarkRenewRemembered(b *testing.B) {
	correlations := make([][]byte, 2*DefaultRemembered)
	for i := range correlations {
		correlations[i] = fmt.Appendf(nil, "%016d", i)
	}
	benchmarkRequests(b, OK, renewal, correlations)
}

func BenchmarkGet(b *testing.B) {
	benchmarkRequests(b, Found, func(i int) []byte { return []byte(payload("GET", benchmarkKey(i))) }, nil)
}

// BenchmarkExpire measures the removal of all keys that fall due at once, in batches
// as package engine makes them.
func BenchmarkExpire(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		b.StopTimer()
		store, now := benchmarkStore(b)
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

// BenchmarkMemory measures what a key with an expiry takes up beyond the bytes of key
// and value.
func BenchmarkMemory(b *testing.B) {
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		store, _ := benchmarkStore(b)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc-before.HeapAlloc)-store.bytes)/benchmarkKeys, "bytes/key")
		runtime.KeepAlive(store)
	}
}
