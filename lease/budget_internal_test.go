package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// countRenewals is what renewals computes, one attempt at a time.
func countRenewals(o *Options) (count int64) {
	backoff, last := o.retryBackoff(0), o.TTL-o.Margin-o.GracePeriod-o.RequestTimeout
	for at := o.RenewEvery; at <= last; count++ {
		answered := at + o.RequestTimeout
		at = answered + backoff.next(1)
		if answered < last {
			at = min(at, last)
		}
	}
	return count
}

func TestABudgetsRenewalsAreThoseThatOneWouldCount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	most := int64(0)
	for range 2000 {
		short := func(longest time.Duration) time.Duration { return 1 + time.Duration(random.Float64()*float64(longest)) }
		o := Options{TTL: MinTTL + short(20*time.Second).Truncate(time.Millisecond)}
		o.RenewEvery, o.RequestTimeout, o.RetryAfter = short(o.TTL/8), short(o.TTL/20), short(o.TTL/20)
		if random.IntN(2) == 0 {
			o.RenewEvery, o.RequestTimeout = short(5*time.Millisecond), short(time.Millisecond)
		}
		if err := o.complete("any"); err != nil {
			t.Fatal(err)
		}
		want := countRenewals(&o)
		if got := o.renewals(); got != want {
			t.Errorf("%v: %d renewals, want %d", o.LogValue(), got, want)
		}
		most = max(most, want)
	}
	if most < 1000 {
		t.Errorf("at most %d renewals were compared", most)
	}
}

func TestABudgetOfYearsTakesNoLongerThanOthers(t *testing.T) {
	budget := await.Result(func() Budget {
		budget, err := Options{TTL: MaxTTL, RenewEvery: 1, RequestTimeout: 1, RetryAfter: 1}.Budget()
		if err != nil {
			t.Error(err)
		}
		return budget
	})
	// The pause between two attempts is 1.5 ms, and 8 of the 10 years are left for them.
	if budget.Renewals < 1<<31-1 {
		t.Errorf("%d renewals in ten years", budget.Renewals)
	}
}
