package transporttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func Example() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	conn := store.Connect("gateway-a")
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	conn.SetFault(func(transport.Request) transporttest.Fault {
		go conn.Cut() // while the reply is on its way
		return transporttest.Fault{LoseReply: true}
	})
	_, err = client.Set(context.Background(), "recipe", []byte("42"), transport.SetOptions{})
	fmt.Println("unknown:", errors.Is(err, transport.ErrOutcomeUnknown))

	conn.SetFault(nil)
	conn.Restore()
	entry, err := client.Get(context.Background(), "recipe")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("it was set: %s\n", entry.Value)
	// Output:
	// unknown: true
	// it was set: 42
}

func TestEachFaultDoesWhatItSays(t *testing.T) {
	for _, test := range []struct {
		name    string
		fault   transporttest.Fault
		within  time.Duration // what the caller waits
		unknown bool
		applied time.Duration // after which time the store has applied it; negative: never
	}{
		{"none", transporttest.Fault{}, time.Second, false, 0},
		{"a lost request", transporttest.Fault{LoseRequest: true}, time.Second, true, -1},
		{"a lost reply", transporttest.Fault{LoseReply: true}, time.Second, true, 0},
		{"a request held for less than the caller waits", transporttest.Fault{HoldRequest: time.Minute}, time.Hour, false, time.Minute},
		{"a request held for longer", transporttest.Fault{HoldRequest: time.Minute}, time.Second, true, time.Minute},
		{"a reply held for longer", transporttest.Fault{HoldReply: time.Minute}, time.Second, true, 0},
		{"a cut before the store", transporttest.Fault{CutBefore: true}, time.Second, true, -1},
		{"a cut after the store", transporttest.Fault{CutAfter: true}, time.Second, true, 0},
		{"a held request, then a cut before the store", transporttest.Fault{HoldRequest: time.Minute, CutBefore: true}, time.Hour, true, -1},
		{"a held request, then a cut after the store", transporttest.Fault{HoldRequest: time.Minute, CutAfter: true}, time.Hour, true, time.Minute},
		{"a held request that loses its reply", transporttest.Fault{HoldRequest: time.Minute, LoseReply: true}, time.Hour, true, time.Minute},
		{"a repeated reply", transporttest.Fault{RepeatReply: true}, time.Second, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				client, conn := store.Client(t, "a", transport.ClientOptions{RequestTimeout: 2 * time.Hour})
				observer, _ := store.Client(t, "b", transport.ClientOptions{})
				conn.SetFault(func(transport.Request) transporttest.Fault { return test.fault })
				ctx, cancel := context.WithTimeout(t.Context(), test.within)
				defer cancel()
				began := time.Now()
				if _, err := client.Set(ctx, "k", nil, transport.SetOptions{}); errors.Is(err, transport.ErrOutcomeUnknown) != test.unknown {
					t.Errorf("the caller got %v", err)
				}
				for _, at := range []time.Duration{time.Since(began), test.applied, 2 * time.Minute} {
					time.Sleep(at - time.Since(began))
					synctest.Wait()
					entry, err := observer.Get(t.Context(), "k")
					if want := test.applied >= 0 && time.Since(began) >= test.applied; err != nil || entry.Exists != want {
						t.Errorf("after %v: applied %v, %v; want %v", time.Since(began), entry.Exists, err, want)
					}
				}
			})
		})
	}
}

func TestInvariant23ARepeatedRequestIsAppliedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{})
		conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{Repeat: true} })
		version, err := client.Set(t.Context(), "k", nil, transport.SetOptions{Condition: transport.IfMissing})
		if err != nil {
			t.Fatal(err)
		}
		conn.SetFault(nil)
		if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Version != version {
			t.Errorf("the key has version %v, %v; the reply said %v", entry.Version, err, version)
		}
	})
}

func TestASecondConnectionOfOneNameTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		first, _ := store.Client(t, "twin", transport.ClientOptions{})
		second, _ := store.Client(t, "twin", transport.ClientOptions{})
		if _, err := first.Get(t.Context(), "k"); !errors.Is(err, transport.ErrSessionTakenOver) {
			t.Errorf("the first: %v, want ErrSessionTakenOver", err)
		}
		if _, err := second.Get(t.Context(), "k"); err != nil {
			t.Errorf("the second: %v", err)
		}
	})
}

func TestClosingAConnectionThatWasTakenOverDoesNotHarmTheNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		first, _ := store.Client(t, "twin", transport.ClientOptions{})
		second, _ := store.Client(t, "twin", transport.ClientOptions{})
		watch, err := second.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close()
		await.Receive(watch.Changes()) // what it holds now
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := second.Set(t.Context(), "k", nil, transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(watch.Changes()) == 0 {
			t.Error("the watch of the second ended with the first")
		}
	})
}

func TestWhileCutRequestsWaitForTheirContextAndWatchesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{})
		conn.Cut()
		conn.Cut() // again does nothing
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := client.Get(ctx, "k")
		if !errors.Is(err, transport.ErrNotSent) || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %v, want ErrNotSent after the request's timeout", err, time.Since(began))
		}
		time.AfterFunc(time.Second, conn.Restore)
		if _, err := client.Get(ctx, "k"); err != nil {
			t.Errorf("after Restore: %v", err)
		}
		conn.Restore() // again does nothing
	})
}

func TestACutBeforeOrAfterTheStoreEndsTheConnectionAtThatMoment(t *testing.T) {
	for _, fault := range []transporttest.Fault{{CutBefore: true}, {CutAfter: true}} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			client, conn := store.Client(t, "a", transport.ClientOptions{})
			fault.HoldRequest = time.Second
			conn.SetFault(func(transport.Request) transporttest.Fault { return fault })
			began := time.Now()
			if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrOutcomeUnknown) || time.Since(began) != time.Second {
				t.Errorf("%+v: %v after %v, want an unknown outcome after a second", fault, err, time.Since(began))
			}
			conn.SetFault(nil)
			if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNotSent) {
				t.Errorf("%+v: then %v, want ErrNotSent: the connection was not restored", fault, err)
			}
			conn.Restore()
			if _, err := client.Get(t.Context(), "k"); err != nil {
				t.Errorf("%+v: after Restore: %v", fault, err)
			}
		})
	}
}

func TestACutHarmsNoLaterConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{})
		conn.SetFault(func(transport.Request) transporttest.Fault {
			conn.SetFault(nil)
			return transporttest.Fault{HoldRequest: 2 * time.Second, CutAfter: true}
		})
		go func() {
			time.Sleep(time.Second)
			conn.Cut()
			conn.Restore()
		}()
		if _, err := client.Set(t.Context(), "k", nil, transport.SetOptions{}); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("the request of the first connection: %v", err)
		}
		time.Sleep(time.Minute)
		if entry, err := client.Get(t.Context(), "k"); err != nil || !entry.Exists {
			t.Errorf("the request that was held was applied: %v, %v", entry.Exists, err)
		}
	})
}

// sets makes one client set a key to each value in turn, without waiting for
// answers, and lets fates decide how. It returns what the store applied.
func sets(t *testing.T, values []string, fates map[string]transporttest.Fault) (applied []transporttest.Applied) {
	t.Helper()
	store := transporttest.Start(t)
	client, conn := store.Client(t, "a", transport.ClientOptions{})
	store.Tap(func(a transporttest.Applied) {
		a.Command.Value = bytes.Clone(a.Command.Value)
		applied = append(applied, a)
	})
	conn.SetFault(func(request transport.Request) transporttest.Fault {
		for value, fate := range fates {
			if strings.Contains(string(request.Payload), "\r\n"+value+"\r\n") {
				return fate
			}
		}
		return transporttest.Fault{}
	})
	for _, value := range values {
		go func() { _, _ = client.Set(t.Context(), "k", []byte(value), transport.SetOptions{}) }()
		synctest.Wait()
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	return applied
}

func TestHeldRequestsAreOvertakenAndTheTapShowsTheStoresOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		applied := sets(t, []string{"first", "second", "third"}, map[string]transporttest.Fault{
			"first":  {HoldRequest: 10 * time.Minute},
			"second": {HoldRequest: 5 * time.Minute, LoseReply: true},
		})
		var got []string
		for i, a := range applied {
			got = append(got, fmt.Sprintf("%v %s %s", a.At.Sub(began), a.Client, a.Command.Value))
			if a.Reply.Outcome != statestore.OK || a.Request.Timestamp == "" || a.Again {
				t.Errorf("the tap says %+v", a)
			}
			if i > 0 && a.Reply.Version.Compare(applied[i-1].Reply.Version) <= 0 {
				t.Error("not in the order of versions")
			}
		}
		if want := []string{"0s a third", "5m0s a second", "10m0s a first"}; !slices.Equal(got, want) {
			t.Errorf("applied %q, want %q", got, want)
		}
	})
}

func TestALateRedeliveryIsAppliedOnceAndTheTapMarksIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applied := sets(t, []string{"first", "second"}, map[string]transporttest.Fault{
			"first": {Repeat: true, RepeatAfter: time.Minute},
		})
		if len(applied) != 3 || applied[0].Again || applied[1].Again || !applied[2].Again {
			t.Fatalf("the tap says %+v", applied)
		}
		if applied[2].Reply.Version != applied[0].Reply.Version {
			t.Error("a redelivery was applied again")
		}
	})
}

func TestNothingIsRedeliveredAfterTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{})
		conn.SetFault(func(transport.Request) transporttest.Fault {
			return transporttest.Fault{Repeat: true, RepeatAfter: time.Minute}
		})
		if _, err := client.Set(t.Context(), "k", nil, transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		store.Tap(func(a transporttest.Applied) { t.Errorf("applied %+v", a) })
		time.Sleep(time.Hour)
	})
}

func TestEachFaultOfANotificationDoesWhatItSays(t *testing.T) {
	arrival := func(after time.Duration, value string) string { return fmt.Sprint(after, " ", value) }
	for _, test := range []struct {
		name  string
		fault transporttest.NotificationFault // of the first of two
		want  []string
	}{
		{"none", transporttest.NotificationFault{}, []string{arrival(0, "1"), arrival(0, "2")}},
		{"lost", transporttest.NotificationFault{Lose: true}, []string{arrival(0, "2")}},
		{"held, and so overtaken", transporttest.NotificationFault{Hold: time.Minute}, []string{arrival(0, "2"), arrival(time.Minute, "1")}},
		{"repeated", transporttest.NotificationFault{Repeat: true, RepeatAfter: time.Hour},
			[]string{arrival(0, "1"), arrival(0, "2"), arrival(time.Hour, "1")}},
		{"held and repeated", transporttest.NotificationFault{Hold: time.Minute, Repeat: true, RepeatAfter: time.Hour},
			[]string{arrival(0, "2"), arrival(time.Minute, "1"), arrival(time.Hour+time.Minute, "1")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				writer, _ := store.Client(t, "writer", transport.ClientOptions{})
				conn := store.Connect("reader")
				defer conn.Close()
				began := time.Now()
				var got []string
				conn.Start(transport.Events{Up: func() {}, Down: func(error) {}, Ended: func(error) {}, Notify: func(n transport.Notification) {
					words := strings.Split(string(n.Payload), "\r\n")
					got = append(got, arrival(time.Since(began), words[len(words)-2]))
				}})
				watch := transport.Request{Payload: []byte("*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n")}
				if _, err := conn.RoundTrip(t.Context(), watch); err != nil {
					t.Fatal(err)
				}
				number := 0
				conn.SetNotificationFault(func(n transport.Notification) transporttest.NotificationFault {
					number++
					if n.Key != "k" || number > 1 {
						return transporttest.NotificationFault{}
					}
					return test.fault
				})
				for _, value := range []string{"1", "2"} {
					if _, err := writer.Set(t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if !slices.Equal(got, test.want) {
					t.Errorf("arrived %q, want %q", got, test.want)
				}
			})
		})
	}
}

func TestANotificationDiesWithItsConnectionAndOneThatIsForgedArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{})
		watch, err := client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close()
		await.Receive(watch.Changes()) // what it holds now
		conn.SetNotificationFault(func(transport.Notification) transporttest.NotificationFault {
			return transporttest.NotificationFault{Hold: time.Minute}
		})
		if _, err := client.Set(t.Context(), "k", []byte("true"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		conn.Cut()
		conn.Restore()
		if change := await.Receive(watch.Changes()); !change.Exists || !change.Missed {
			t.Errorf("read after the cut: %+v", change)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case change := <-watch.Changes():
			t.Errorf("a notification outlived its connection: %+v", change)
		default:
		}
		conn.Forge(transport.Notification{Key: "k", Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n")})
		if change := await.Receive(watch.Changes()); change.Exists {
			t.Errorf("the forged delete arrived as %+v", change)
		}
		conn.Cut()
		conn.Forge(transport.Notification{Key: "k", Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n")})
		synctest.Wait()
		if len(watch.Changes()) > 0 {
			t.Error("a notification arrived while the connection was cut")
		}
	})
}

func TestTheTapSeesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, _ := store.Client(t, "a", transport.ClientOptions{})
		store.Authorize(func(string, statestore.Verb, string) bool { return false })
		var seen []error
		store.Tap(func(a transporttest.Applied) { seen = append(seen, a.Reply.Err) })
		_, _ = client.Get(t.Context(), "k")
		store.Tap(nil)
		_, _ = client.Get(t.Context(), "k")
		if len(seen) != 1 || !errors.Is(seen[0], transport.ErrNotAuthorized) {
			t.Errorf("the tap saw %v", seen)
		}
	})
}

func TestNothingArrivesOverAFrozenConnectionUntilAProbeGivesItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{RequestTimeout: time.Second})
		other, _ := store.Client(t, "b", transport.ClientOptions{})
		watch, err := client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		await.Receive(watch.Changes())
		client.Probe(time.Second) // on one that works
		time.Sleep(2 * time.Second)
		lost := client.Lost()
		// The connection is lost before the reply arrives.
		conn.SetFault(func(transport.Request) transporttest.Fault {
			return transporttest.Fault{HoldReply: 100 * time.Millisecond}
		})
		time.AfterFunc(50*time.Millisecond, conn.Freeze)
		if _, err := client.Set(t.Context(), "applied", nil, transport.SetOptions{}); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("a request under way: %v", err)
		}
		conn.SetFault(nil)
		if _, err := client.Set(t.Context(), "k", []byte("lost"), transport.SetOptions{}); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("a request: %v", err)
		}
		for key, want := range map[string]bool{"applied": true, "k": false} {
			if entry, err := other.Get(t.Context(), key); err != nil || entry.Exists != want {
				t.Errorf("%s: %+v, %v", key, entry, err)
			}
		}
		if _, err := other.Set(t.Context(), "k", []byte("by another"), transport.SetOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if len(watch.Changes()) > 0 {
			t.Error("a notification arrives")
		}
		select {
		case <-lost:
			t.Error("the connection ends by itself")
		default:
		}
		began := time.Now()
		client.Probe(time.Second)
		client.Probe(time.Millisecond) // one is under way
		await.Receive(lost)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the connection is given up after %v", took)
		}
		if change := await.Receive(watch.Changes()); string(change.Value) != "by another" || !change.Missed {
			t.Errorf("over the next connection: %+v", change)
		}
		conn.Cut()
		client.Probe(time.Second)
		time.Sleep(time.Hour)
		conn.Restore()
		if _, err := client.Get(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	})
}
