package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// goneKeys are keys that are written once and then go away: deleted or expired, as a reply or
// a notification told. After that they must not come back.
type goneKeys struct {
	recorder *recorder

	mu     sync.Mutex
	recent []string // that were seen gone
	seen   int
}

const mostRecent = 64

// use makes keys and sees them go until ctx ends. The client numbers its keys from a number of
// its own.
func (g *goneKeys) use(ctx context.Context, s *session, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		sleep.For(ctx, time.Duration(random.IntN(4000))*time.Microsecond)
		key := fmt.Sprintf("gone/%d/%d", s.number, n)
		o := Operation{Kind: Set, Key: key, Value: "here"}
		how := random.IntN(4)
		if how >= 2 {
			o.TTL = time.Duration(1+random.IntN(30)) * time.Millisecond
		}
		if o = s.do(ctx, o); o.Result != Done {
			continue
		}
		switch how {
		case 0:
			o = s.do(ctx, Operation{Kind: Del, Key: key})
			g.note(key, o.Result == Done)
		case 1:
			o = s.do(ctx, Operation{Kind: VDel, Key: key, Value: "here"})
			g.note(key, o.Result == Done)
		case 2:
			sleep.For(ctx, o.TTL)
			o = s.do(ctx, Operation{Kind: Get, Key: key})
			g.note(key, o.Result == Absent)
		case 3:
			g.note(key, g.awaitNotification(ctx, s, key, time.Second))
		}
	}
}

// awaitNotification reports whether a notification told in time that the key is gone.
func (g *goneKeys) awaitNotification(ctx context.Context, s *session, key string, patience time.Duration) bool {
	watch, err := s.Watch(key)
	if err != nil {
		return false
	}
	defer watch.Close()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		case change, open := <-watch.Changes():
			if !open {
				return false
			}
			if !change.Exists {
				return true
			}
		}
	}
}

func (g *goneKeys) note(key string, gone bool) {
	if !gone {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen++
	if g.recent = append(g.recent, key); len(g.recent) > mostRecent {
		g.recent = g.recent[1:]
	}
}

// audit reads the keys that were seen gone most recently. It returns false if a reply is missing.
func (g *goneKeys) audit(ctx context.Context, s *session, most int) bool {
	g.mu.Lock()
	recent := slices.Clone(g.recent[max(0, len(g.recent)-most):])
	g.mu.Unlock()
	for _, key := range recent {
		o := s.do(ctx, Operation{Kind: Get, Key: key})
		switch o.Result {
		case Absent:
		case Done:
			g.recorder.violated(GoneStaysGone, "%v", o)
		default:
			return false
		}
	}
	return true
}
