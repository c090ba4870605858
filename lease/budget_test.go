package lease_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func ExampleOptions_Budget() {
	budget, err := lease.Options{TTL: 2 * time.Second, RequestTimeout: 200 * time.Millisecond}.Budget()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(budget)
	// Output:
	// With a TTL of 2s                                 at worst
	// the holder crashes: the next one holds after     2.2s
	// the holder is cut off: the next one holds after  2.2s
	// … of which no holder works for                   800ms
	// a clean hand-over takes                          10ms
	// … if its notification is lost                    2.2s
	// renewals in a row that may go unanswered         2
}

func TestABudgetOfNonsenseIsRefused(t *testing.T) {
	if _, err := (lease.Options{TTL: time.Second, RenewEvery: time.Second}).Budget(); err == nil {
		t.Error("RenewEvery as long as TTL was accepted")
	}
}

// budgets are the options under which the promises of a Budget are tried.
var budgets = []struct {
	name string
	lease.Options
}{
	{"the defaults", lease.Options{TTL: ttl}},
	{"short requests", lease.Options{TTL: ttl, RequestTimeout: ttl / 20}},
	{"frequent renewals", lease.Options{TTL: ttl, RenewEvery: ttl / 10, RetryAfter: ttl / 100}},
	{"acquire delay", lease.Options{TTL: ttl, AcquireDelay: ttl / 5}},
	{"a short TTL", lease.Options{TTL: 100 * time.Millisecond}},
}

func TestABudgetsRenewalsAreHowManyMayGoUnanswered(t *testing.T) {
	for _, options := range budgets {
		budget, err := options.Budget()
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			lost  int
			lives bool
		}{{budget.Renewals - 1, true}, {100, false}} {
			t.Run(fmt.Sprintf("%s and %d lost replies", options.name, test.lost), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					n := newNode(t, store, "node-a", options.Options)
					tenure := n.mustAcquire(t)
					n.scripted("SET", func(number int64) transporttest.Fault {
						return transporttest.Fault{LoseReply: number <= int64(test.lost)}
					})
					time.Sleep(options.TTL)
					if err := tenure.Err(); errors.Is(err, lease.ErrDeadlinePassed) == test.lives {
						t.Errorf("the cause of its end is %v; is it to live: %t", err, test.lives)
					}
				})
			})
		}
	}
}

func TestABudgetHoldsForAHolderThatIsCutOffAndNotificationsThatAreLost(t *testing.T) {
	for _, options := range budgets {
		budget, err := options.Budget()
		if err != nil {
			t.Fatal(err)
		}
		// The worst moment is just after a renewal; try many.
		for part := range time.Duration(20) {
			t.Run(fmt.Sprintf("%s, cut off after 3 TTL and %d %%", options.name, 5*part), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					a, b := newNode(t, store, "node-a", options.Options), newNode(t, store, "node-b", options.Options)
					b.conn.Silence(true)
					tenure := a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(3*options.TTL + part*options.TTL/20)
					cut := time.Now()
					a.conn.Cut()
					await.Receive(tenure.Done())
					stopped := time.Now()
					await.Receive(acquired)
					if got := time.Since(cut); got > budget.CutOff || got > budget.Crash {
						t.Errorf("the next one holds after %v, promised are %v", got, budget.CutOff)
					}
					if got := time.Since(stopped); got > budget.Unheld {
						t.Errorf("no holder works for %v, promised are %v", got, budget.Unheld)
					}
				})
			})
		}
	}
}

func TestABudgetHoldsForAHandOver(t *testing.T) {
	for _, test := range []struct {
		name   string
		silent bool
		limit  func(lease.Budget) time.Duration
	}{
		{"that is heard", false, func(b lease.Budget) time.Duration { return b.HandOver }},
		{"that is not heard", true, func(b lease.Budget) time.Duration { return b.HandOverUnheard }},
	} {
		for _, options := range budgets {
			budget, err := options.Budget()
			if err != nil {
				t.Fatal(err)
			}
			t.Run(test.name+" with "+options.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					a, b := newNode(t, store, "node-a", options.Options), newNode(t, store, "node-b", options.Options)
					tenure := a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(3*options.TTL + options.TTL/7)
					b.conn.Silence(test.silent)
					released := time.Now()
					if err := tenure.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					await.Receive(acquired)
					if got := time.Since(released); got > test.limit(budget) {
						t.Errorf("the hand-over took %v, promised are %v", got, test.limit(budget))
					}
				})
			})
		}
	}
}
