package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// ticker looks at the clock for the tenures of one client that need it equally often, and at the store for those
// that wait for a reply. Go's timers stand still while the machine is suspended, and thousands of timers cost more
// than all that tenures do beside.
type ticker struct {
	tickerKey
	tenures map[*Tenure]bool // guarded by tickers
	stop    chan struct{}
}

type tickerKey struct {
	client *transport.Client
	every  time.Duration
}

// tickers has those with tenures.
var tickers = struct {
	sync.Mutex
	of map[tickerKey]*ticker
}{of: make(map[tickerKey]*ticker)}

// joinTicker lets the clock be looked at for a tenure, until leave.
func (t *Tenure) joinTicker() (leave func()) {
	key := tickerKey{t.lease.client, t.lease.options.lookEvery()}
	tickers.Lock()
	defer tickers.Unlock()
	shared := tickers.of[key]
	if shared == nil {
		shared = &ticker{tickerKey: key, tenures: make(map[*Tenure]bool), stop: make(chan struct{})}
		tickers.of[key] = shared
		t.lease.client.Go(shared.run) // or the client is closed, and the tenure ends
	}
	shared.tenures[t] = true
	return func() { shared.leave(t) }
}

func (s *ticker) leave(t *Tenure) {
	tickers.Lock()
	defer tickers.Unlock()
	if delete(s.tenures, t); len(s.tenures) == 0 {
		delete(tickers.of, s.tickerKey)
		close(s.stop)
	}
}

// run is a task of the client. It looks at all tenures when another store answers. The system's clock leaves Go's
// timers behind only by a suspend, so after its first round run looks at the tenures that go by that clock after a
// suspend only.
func (s *ticker) run(client context.Context) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	_, replaced := s.client.Store()
	for before := time.Duration(-1); ; {
		select {
		case <-s.stop:
			return
		case <-client.Done():
			return
		case <-replaced:
			before = -1
		case <-tick.C:
		}
		_, replaced = s.client.Store()
		SystemClock()
		suspended := system.Suspended()
		for _, t := range s.members() { // each reads its clock after it has joined
			if suspended != before || !t.lease.options.systemClock {
				_, _ = t.remaining()
			}
		}
		before = suspended
	}
}

func (s *ticker) members() []*Tenure {
	tickers.Lock()
	defer tickers.Unlock()
	return slices.Collect(maps.Keys(s.tenures))
}
