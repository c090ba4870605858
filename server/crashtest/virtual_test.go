package crashtest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// virtualStore is a store in this process, in virtual time. Its commits take time, and a crash
// keeps some groups of the commit that was under way.
type virtualStore struct {
	options statestore.Options
	random  *rand.Rand
	journal transporttest.Journal
	store   *transporttest.Store // nil before the first start

	mu    sync.Mutex
	conns []*transporttest.Conn
}

func (v *virtualStore) Start(_ context.Context, life crashtest.Life) (err error) {
	v.journal.SetLatency(time.Duration(v.random.IntN(15)) * time.Millisecond)
	if v.store == nil {
		v.store, err = transporttest.NewDurableStore(v.options, &v.journal)
		return err
	}
	v.store.SetWall(func() time.Time { return time.Now().Add(life.Clock) })
	return v.store.Recover()
}

func (v *virtualStore) Died() <-chan struct{} { return nil }

func (v *virtualStore) Kill() error {
	v.store.Crash(v.random.IntN(4))
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, conn := range v.conns {
		conn.Restore() // when the store is there again
	}
	return nil
}

func (v *virtualStore) Dial(_ context.Context, id string, options transport.ClientOptions) (*transport.Client, error) {
	conn := v.store.Connect(id)
	conn.SetFault(func(transporttest.Request) transporttest.Fault {
		fault := transporttest.Fault{HoldReply: rand.N(3 * time.Millisecond)}
		switch rand.IntN(200) { // now and then the network fails, one way
		case 0:
			fault.HoldReply = rand.N(3 * time.Second)
		case 1:
			fault.LoseRequest = true
		case 2:
			fault.LoseReply = true
		}
		return fault
	})
	v.mu.Lock()
	v.conns = append(v.conns, conn)
	v.mu.Unlock()
	return transport.NewClient(conn, options)
}

func (v *virtualStore) Points() []failpoint.Point { return nil }

// Invariants 30, 32, 33, 36 and 37: the same in virtual time, with commits that are slow and torn.
func TestInvariants32And33And37ACrashInVirtualTimeLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			v := &virtualStore{options: statestore.Options{Strict: strict}, random: rand.New(rand.NewPCG(*seed, 2))}
			report, err := crashtest.Run(t.Context(), v, crashtest.Options{Cycles: 60, Seed: *seed, Strict: strict})
			v.store.Close()
			if err := errors.Join(err, report.Err()); err != nil {
				t.Error(err)
			}
			t.Logf("strict: %t\n%v", strict, report)
		})
	}
}
