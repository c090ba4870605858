package lease_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant7OptionsThatCannotSurviveOneLostReplyAreRefused(t *testing.T) {
	second := time.Second
	for _, test := range []struct {
		name    string
		options lease.Options
		want    string // in the error; empty: accepted
	}{
		{"the zero value", lease.Options{}, ""},
		{"a TTL alone", lease.Options{TTL: 100 * time.Millisecond}, ""},
		{"the shortest TTL", lease.Options{TTL: lease.MinTTL}, ""},
		{"a TTL that is too short", lease.Options{TTL: lease.MinTTL - time.Millisecond}, "at least 50ms"},
		{"the longest TTL", lease.Options{TTL: lease.MaxTTL}, ""},
		{"a TTL that is too long", lease.Options{TTL: lease.MaxTTL + time.Millisecond}, "at most 87600h0m0s"},
		{"a jitter that is too long", lease.Options{Jitter: lease.MaxTTL + 1}, "Jitter 87600h0m0.000000001s is longer"},
		{"a negative TTL", lease.Options{TTL: -second}, "TTL -1s"},
		{"a TTL with a fraction of a millisecond", lease.Options{TTL: second + time.Microsecond}, "whole milliseconds"},
		{"a negative margin", lease.Options{Margin: -1}, "Margin -1ns is negative"},
		{"a negative grace period", lease.Options{GracePeriod: -1}, "GracePeriod -1ns is negative"},
		{"a negative renewal interval", lease.Options{RenewEvery: -1}, "RenewEvery -1ns is negative"},
		{"a negative timeout", lease.Options{RequestTimeout: -1}, "RequestTimeout -1ns is negative"},
		{"a negative pause", lease.Options{RetryAfter: -1}, "RetryAfter -1ns is negative"},
		{"a negative jitter", lease.Options{Jitter: -1}, "Jitter -1ns is negative"},
		{"a negative acquire delay", lease.Options{AcquireDelay: -1}, "AcquireDelay -1ns is negative"},
		{"exactly enough time for one lost reply", lease.Options{
			TTL: 10 * second, Margin: second, GracePeriod: second,
			RenewEvery: 4 * second, RequestTimeout: 3 * second / 2, RetryAfter: second,
		}, ""},
		{"a nanosecond too little", lease.Options{
			TTL: 10 * second, Margin: second, GracePeriod: second,
			RenewEvery: 4*second + 1, RequestTimeout: 3 * second / 2, RetryAfter: second,
		}, "RenewEvery at most 4s"},
		{"a margin that eats the TTL", lease.Options{TTL: 10 * second, Margin: 9 * second}, "make TTL at least"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
				_, err := lease.New(client, name, test.options)
				switch {
				case test.want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("error %v, want one that says %q", err, test.want)
				}
			})
		})
	}
}

func TestALeaseNeedsAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		if _, err := lease.New(client, "", lease.Options{}); err == nil {
			t.Error("an empty name was accepted")
		}
	})
}

func TestSystemClockGoesOnAndNeverBack(t *testing.T) {
	began := lease.SystemClock()
	for last := began; last-began < 5*time.Millisecond; {
		now := lease.SystemClock()
		if now < last {
			t.Fatalf("the clock went back from %v to %v", last, now)
		}
		last = now
	}
}
