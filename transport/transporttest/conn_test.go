package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/storeconn"
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

	conn.SetFault(func(transporttest.Request) transporttest.Fault {
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
		{"a cut before the store", transporttest.Fault{LoseRequest: true, Cut: true}, time.Second, true, -1},
		{"a cut after the store", transporttest.Fault{Cut: true}, time.Second, true, 0},
		{"a held request, then a cut before the store", transporttest.Fault{HoldRequest: time.Minute, LoseRequest: true, Cut: true}, time.Hour, true, -1},
		{"a held request, then a cut after the store", transporttest.Fault{HoldRequest: time.Minute, Cut: true}, time.Hour, true, time.Minute},
		{"a held request that loses its reply", transporttest.Fault{HoldRequest: time.Minute, LoseReply: true}, time.Hour, true, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				client, conn := store.Client(t, "a", transport.ClientOptions{RequestTimeout: 2 * time.Hour})
				observer, _ := store.Client(t, "b", transport.ClientOptions{})
				conn.SetFault(func(transporttest.Request) transporttest.Fault { return test.fault })
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
				conn.Start(storeconn.Events{Up: func() {}, Down: func(error) {}, Ended: func(error) {}, Notify: func(n transporttest.Notification) {
					words := strings.Split(string(n.Payload), "\r\n")
					got = append(got, arrival(time.Since(began), words[len(words)-2]))
				}})
				watch := transporttest.Request{Payload: []byte("*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n")}
				if _, err := conn.RoundTrip(t.Context(), watch); err != nil {
					t.Fatal(err)
				}
				number := 0
				conn.SetNotificationFault(func(n transporttest.Notification) transporttest.NotificationFault {
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
