package attach_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

const losesRequests = "loses requests when many clients send at once"

// mosquitto 2.0.11 has as many messages in flight as the Receive Maximum says; other brokers
// have a limit of their own, as the window here is one.
func TestAStoreWarnsOfABrokerThatLosesABurst(t *testing.T) {
	const defaults = "max_inflight_messages 20\nmax_queued_messages 1000\n" // mosquitto's
	for _, test := range []struct {
		name, settings string
		window         uint16 // 0: what the store announces by itself
		messages       int
		want           string // of the warning; empty: none
	}{
		{"as the document has it", "", 20, 0, ""},
		{"few in flight, and a short queue", defaults, 20, 0, "sent=5000 lost=39"},
		{"a small burst", defaults, 20, 900, ""},
		{"a queue bounded in bytes", "max_queued_bytes 100000\n", 20, 0, "sent=5000 lost=4"},
		{"no probe", defaults, 20, -1, ""},
		{"a window that makes up for the queue", defaults, 0, 20_000, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if testsupport.UnderRace && test.messages > 10_000 {
				t.Skip("the race detector lets no probe of so many messages end in time")
			}
			broker, log := mosquitto.Start(t, test.settings), new(logbuffer.Buffer)
			store, err := attach.New("mqtt://"+broker.Address, attach.Options{ProbeMessages: test.messages, Logger: log.Logger()})
			if err != nil {
				t.Fatal(err)
			}
			store.Alone()
			if test.window != 0 {
				store.Narrow(test.window)
			}
			testsupport.ServeAttached(t, store).MustBeReady()
			got := log.String()
			warned := strings.Contains(got, losesRequests) && strings.Contains(got, "max_queued_messages 10000")
			if warned != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("logged %q, want %q", got, test.want)
			}
		})
	}
}

// A store that takes the place of another one must not be away for the seconds that a probe may take.
func TestABrokerThatHasKeptABurstIsNotProbedAgain(t *testing.T) {
	const probing = "probing the broker"
	lossy := "max_inflight_messages 20\nmax_queued_messages 1000\n"
	for _, test := range []struct {
		name, settings string
		first, second  int // messages
		again          bool
	}{
		{"as many", "", 5000, 5000, false},
		{"fewer", "", 5000, 100, false},
		{"more", "", 100, 5000, true},
		{"a broker that has lost some", lossy, 5000, 5000, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			broker := mosquitto.Start(t, test.settings)
			for i, messages := range []int{test.first, test.second} {
				log := new(logbuffer.Buffer)
				store, err := attach.New("mqtt://"+broker.Address, attach.Options{ProbeMessages: messages, Logger: log.Logger()})
				if err != nil {
					t.Fatal(err)
				}
				store.Alone()
				if test.settings != "" {
					store.Narrow(20)
				}
				a := testsupport.ServeAttached(t, store)
				a.MustBeReady()
				if got, want := strings.Contains(log.String(), probing), i == 0 || test.again; got != want {
					t.Errorf("store %d probes: %t, want %t: %s", i, got, want, log.String())
				}
				if strings.Contains(log.String(), losesRequests) != (test.settings != "") {
					t.Errorf("store %d logged %s", i, log.String())
				}
				a.Stop()
				if err := a.Result(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestAStoreThatMayNotProbeSaysSoAndAnswers(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(string) string
		want   string
	}{
		{"it may not read", func(rules string) string {
			return strings.NewReplacer("pattern read clients/%c/#\n", "", "topic read clients/#\n", "").Replace(rules)
		}, "/queue-probe: its rules must let a store read that topic"},
		{"it may", unchanged, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			broker, log := startGuardedMosquitto(t, test.change), new(logbuffer.Buffer)
			attachAlone(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret"), Logger: log.Logger()})
			if got := log.String(); strings.Contains(got, "cannot tell") != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("logged %q, want %q", got, test.want)
			}
		})
	}
}

func TestAProbeThatIsTooLargeIsRefused(t *testing.T) {
	if _, err := attach.New("mqtt://localhost", attach.Options{ProbeMessages: 60_001}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(60_000)) {
		t.Errorf("Attach: %v", err)
	}
}
