package crashtest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// renewals are keys that one client each renews all the time, as holders of leases do. A
// journal has no record of a renewal. So a crash forgets them, but not the versions that they
// were given, and it gives each key its whole lifetime again.
type renewals struct {
	recorder *recorder
	ttl      time.Duration
}

// renew renews a key until ctx ends.
func (r *renewals) renew(ctx context.Context, s *session, key string, random *rand.Rand) {
	renewal := Operation{Kind: Set, Key: key, Value: key, Condition: transport.IfMissingOrEqual, TTL: r.ttl}
	deadline := time.Duration(0) // until then the key is there
	for n := 0; ctx.Err() == nil; n++ {
		o := s.do(ctx, renewal)
		switch {
		case o.Result == Done:
			deadline = o.Call + r.ttl
			r.recorder.count(Renewals, 1)
		case o.Result == Failed:
			r.recorder.violated(WritesSurvive, "%v, and nothing else writes this key", o)
		}
		if n%8 == 0 {
			o = s.do(ctx, Operation{Kind: Get, Key: key})
			if o.Result == Absent && o.Return < deadline {
				r.recorder.violated(LeasesLast, "%v; it was to last until %.3f s", o, deadline.Seconds())
			}
		}
		sleep.For(ctx, time.Duration(random.IntN(3000))*time.Microsecond)
	}
}
