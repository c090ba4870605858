package fencing_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// BenchmarkGuard compares a guard with a client, and the update of a claimed key with the
// update of another. The store is in this process, so requests are cheap: over a network the
// number of requests counts.
func BenchmarkGuard(b *testing.B) {
	client, _ := transporttest.Start(b).Client(b, "node-a", transport.ClientOptions{})
	l, err := lease.New(client, "press-7/active", lease.Options{})
	if err != nil {
		b.Fatal(err)
	}
	tenure, err := l.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	token, err := tenure.Token()
	if err != nil {
		b.Fatal(err)
	}
	guard := fencing.NewGuard(client, tenure)
	keep := func(old transport.Entry) ([]byte, error) { return old.Value, nil }
	for _, operation := range []struct {
		name string
		do   func(ctx context.Context, i int) error
	}{
		{"client Set", func(ctx context.Context, _ int) error {
			_, err := client.Set(ctx, key, nil, transport.SetOptions{FencingToken: token})
			return err
		}},
		{"Set", func(ctx context.Context, _ int) error { _, err := guard.Set(ctx, key, nil); return err }},
		{"Get", func(ctx context.Context, _ int) error { _, err := guard.Get(ctx, key); return err }},
		{"Update, claimed", func(ctx context.Context, _ int) error { _, err := guard.Update(ctx, key, keep); return err }},
		{"Update, not claimed", func(ctx context.Context, i int) error {
			_, err := guard.Update(ctx, strconv.Itoa(i%10_000), keep) // more keys than the cache of claims has
			return err
		}},
	} {
		b.Run(operation.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if err := operation.do(b.Context(), i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// An equal token, as nearly all are: no hook.
func BenchmarkChecker(b *testing.B) {
	checker, err := fencing.NewChecker(resource, hlc.Token{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	token, write := hlc.Token{Wall: 1, Node: "StateStore"}, func() error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := checker.Do(b.Context(), token, write); err != nil {
			b.Fatal(err)
		}
	}
}
