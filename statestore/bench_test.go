package statestore

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Benchmarks run over as many keys as a very large site has leases.
const benchmarkKeys = 1_000_000

// stride visits the keys in an order that caches cannot predict. It has no common divisor with
// the number of keys, so it visits all of them.
const stride = 611_953

var benchmarkTimestamp = "001696374425000:00000:gateway-a"

func benchmarkKey(i int) string { return fmt.Sprintf("lease-%07d", i) }

func renewal(i int) []byte {
	return []byte(payload("SET", benchmarkKey(i), "gateway-a/0123456789", "NEX", "PX", "60000"))
}

// benchmarkStore returns a store with a lease at each key. All leases end a minute after the
// Instant.
func benchmarkStore(b *testing.B, keys int) (*Store, Instant) {
	b.Helper()
	w := newWorld(b, Options{})
	for i := range keys {
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
// encoded. The payload has the digits of another key written over its own, as a network writes into a buffer: a million payloads in memory would be measured
// instead.
func benchmarkRequests(b *testing.B, want Outcome, payload []byte, correlations [][]byte) {
	for _, keys := range []int{10_000, benchmarkKeys} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) { benchmarkKeysOf(b, keys, want, payload, correlations) })
	}
}

func benchmarkKeysOf(b *testing.B, keys int, want Outcome, payload []byte, correlations [][]byte) {
	store, now := benchmarkStore(b, keys)
	digits := payload[bytes.Index(payload, []byte("lease-"))+len("lease-"):][:7]
	var answer []byte
	runtime.GC()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now.Elapsed += time.Microsecond
		for n, at := i*stride%keys, len(digits)-1; at >= 0; n, at = n/10, at-1 {
			digits[at] = byte('0' + n%10)
		}
		request := Request{Payload: payload}
		if correlations != nil {
			request.Correlation = correlations[i%len(correlations)]
		}
		answer = benchmarkApply(b, store, now, request, want).Append(answer[:0])
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

// BenchmarkRenewDedup measures renewals as in a server: each request has correlation data, and
// the store records the reply.
func BenchmarkRenewDedup(b *testing.B) {
	correlations := make([][]byte, 2*DefaultDedupWindow)
	for i := range correlations {
		correlations[i] = fmt.Appendf(nil, "%016d", i)
	}
	benchmarkRequests(b, OK, renewal(0), correlations)
}

// BenchmarkMemory measures the memory of a key with an expiry beyond the bytes of key and value.
func BenchmarkMemory(b *testing.B) {
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		store, _ := benchmarkStore(b, benchmarkKeys)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc-before.HeapAlloc)-store.bytes)/benchmarkKeys, "bytes/key")
		runtime.KeepAlive(store)
	}
}
