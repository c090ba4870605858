package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
)

func TestCredentialsThatTravelInTheClearAreWarnedAbout(t *testing.T) {
	path, _ := secretFile(t, "secret")
	for _, test := range []struct {
		name, addresses string
		options         Options
		warned          bool
	}{
		{"a password", "mqtt://a", Options{Username: "user", Password: []byte("secret")}, true},
		{"a password file", "ws://a", Options{Username: "user", PasswordFile: path}, true},
		{"a token", "mqtts://a,tcp://b", Options{TokenFile: path}, true},
		{"encrypted", "mqtts://a,wss://b", Options{TokenFile: path}, false},
		{"no secret", "mqtt://a", Options{Username: "user"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log strings.Builder
			test.options.Logger = slog.New(slog.NewTextHandler(&log, nil))
			test.options.WebSocket = func(context.Context, net.Conn, *url.URL) (net.Conn, error) { return nil, errors.New("none") }
			if _, err := newConn(t.Context(), test.addresses, &test.options); err != nil {
				t.Fatal(err)
			}
			test.options.program.close()
			if got := log.String(); strings.Contains(got, "not encrypted") != test.warned || strings.Contains(got, "secret") {
				t.Errorf("logged %q; want a warning: %t", got, test.warned)
			}
		})
	}
}

func TestNonsensicalOptionsAreRefusedBeforeAnythingIsDialled(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certificate, key := filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	certificates.Write(t, certificates.New(t, "client").Own, certificate, key)
	missing, empty, wrong := filepath.Join(dir, "missing"), write("empty", "\n"), write("wrong", "content")
	encrypted := write("encrypted.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	const plain, encryptedServer, upgrade = "mqtt://192.0.2.1", "mqtts://192.0.2.1", "needs Options.WebSocket: set it to tenurews.Upgrade, of the module github.com/tenurelock/tenure/contrib/tenurews"
	for _, test := range []struct {
		address string
		options Options
		want    string
	}{
		{plain, Options{ClientID: "a/b"}, "Options.ClientID"},
		{plain, Options{ClientID: "a+"}, "Options.ClientID"},
		{plain, Options{ClientID: "a\n"}, "Options.ClientID"},
		{plain, Options{ClientID: strings.Repeat("a", 33_000)}, "Options.ClientID"},
		{plain, Options{KeepAlive: 1500 * time.Millisecond}, "Options.KeepAlive"},
		{plain, Options{KeepAlive: -time.Second}, "Options.KeepAlive"},
		{plain, Options{KeepAlive: 65536 * time.Second}, "Options.KeepAlive"},
		{plain, Options{ReconnectMin: -1}, "Options.ReconnectMin"},
		{plain, Options{ReconnectMin: time.Second, ReconnectMax: time.Millisecond}, "Options.ReconnectMin 1s and ReconnectMax"},
		{plain, Options{Password: []byte("p"), PasswordFile: "dial.go"}, "Options.Password and PasswordFile exclude"},
		{plain, Options{TokenFile: "dial.go", Username: "u"}, "Options.TokenFile and Username"},
		{plain, Options{TokenFile: "dial.go", PasswordFile: "dial.go"}, "Options.TokenFile and Username"},
		{plain, Options{TLS: TLSOptions{CertFile: "dial.go"}}, "Options.TLS.CertFile and its key belong together"},
		{plain, Options{TLS: TLSOptions{KeyFile: "dial.go"}}, "Options.TLS.CertFile and its key belong together"},
		{plain, Options{TLS: TLSOptions{CAFile: "dial.go"}}, "Options.TLS is set, and mqtt://192.0.2.1:1883 does not encrypt: write mqtts or wss"},
		{plain, Options{Password: make([]byte, 1<<16)}, "Options.Password has 65536 bytes, and MQTT carries at most 65535"},
		{plain, Options{PasswordFile: "missing"}, "Options.PasswordFile: open missing"},
		{plain, Options{TokenFile: "missing"}, "Options.TokenFile: open missing"},
		{plain, Options{ClientOptions: ClientOptions{RequestTimeout: -1}}, "RequestTimeout"},
		{"ws://broker", Options{}, `broker address "ws://broker:80" ` + upgrade},
		{"mqtt://a,wss://b/mqtt", Options{}, `broker address "wss://b:443/mqtt" ` + upgrade},
		{encryptedServer, Options{PasswordFile: empty}, "Options.PasswordFile: " + empty + " is empty"},
		{encryptedServer, Options{TokenFile: empty}, "Options.TokenFile: " + empty + " is empty"},
		{encryptedServer, Options{TLS: TLSOptions{CAFile: missing}}, "Options.TLS.CAFile: open " + missing},
		{encryptedServer, Options{TLS: TLSOptions{CAFile: wrong}}, "Options.TLS.CAFile: " + wrong + " holds no certificate"},
		{encryptedServer, Options{TLS: TLSOptions{CertFile: missing, KeyFile: key}}, "Options.TLS.CertFile: open " + missing},
		{encryptedServer, Options{TLS: TLSOptions{CertFile: wrong, KeyFile: key}}, "Options.TLS.CertFile: " + wrong},
		{encryptedServer, Options{TLS: TLSOptions{CertFile: certificate, KeyFile: missing}}, "Options.TLS.KeyFile: open " + missing},
		{encryptedServer, Options{TLS: TLSOptions{CertFile: certificate, KeyFile: encrypted}}, "Options.TLS.KeyFile: " + encrypted + " is encrypted"},
	} {
		_, err := Dial(t.Context(), test.address, test.options)
		if err == nil || !strings.HasPrefix(err.Error(), "transport: "+test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// A program that waits in Dial says why, without a Logger too, and does not fill its log. Later losses are silent
// without a Logger.
func TestFailuresOfDialAreLoggedOnceAndThenLessAndLessOften(t *testing.T) {
	for name, given := range map[string]bool{"to slog.Default": false, "to the Logger": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log, none strings.Builder
				before := slog.Default()
				defer slog.SetDefault(before)
				slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
				b := &pipeBroker{t: t, down: true}
				options := Options{ClientID: "a", Dialer: b.dial}
				if given {
					slog.SetDefault(slog.New(slog.NewTextHandler(&none, nil)))
					options.Logger = slog.New(slog.NewTextHandler(&log, nil))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if _, err := Dial(ctx, "mqtt://broker", options); err == nil || !strings.HasPrefix(err.Error(), "transport: dial mqtt://broker: broker is down (context deadline") {
					t.Errorf("%v", err)
				}
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				// At 0 s, 1 s, 3 s, 7 s, 15 s, 31 s, 63 s, and then once in a minute.
				if !strings.Contains(lines[0], "level=WARN msg=\"cannot connect\" client=a broker=broker:1883 attempt=1 error=\"broker is down\"") || len(lines) < 12 || len(lines) > 18 {
					t.Errorf("%d lines:\n%s", len(lines), log.String())
				}
				log.Reset()
				time.AfterFunc(10*time.Second, func() { b.refuseToDial(false) })
				client, err := Dial(t.Context(), "mqtt://broker", options)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := log.String(); !strings.Contains(got, "level=INFO msg=connected client=a broker=broker:1883 failed_attempts=") {
					t.Errorf("logged %s", got)
				}
				log.Reset()
				b.refuseToDial(true)
				b.cut()
				time.Sleep(time.Minute)
				synctest.Wait()
				if (log.Len() > 0) != given || none.Len() > 0 {
					t.Errorf("after the first connection: %s, and to slog.Default: %s", log.String(), none.String())
				}
				_ = client.Close()
				b.cut()
				await.Done(b.tasks.Wait)
			})
		})
	}
}

// pair is two addresses: b stands by until take, and a fails with fail.
type pair struct {
	*pipeBroker
	*standbys
	client *Client
	frozen atomic.Bool
	slow   atomic.Bool
}

const slowServer = 6 * time.Second

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{standbys: &standbys{refer: map[string]string{"b": "a"}, codes: []byte{packets.ConnackUseAnotherServer}}, pipeBroker: &pipeBroker{}}
	refuse := p.refuseConnect(p.pipeBroker)
	p.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, isConnect := packet.Content.(*packets.Connect); isConnect && p.latestHost() == "a" {
			if p.slow.Load() {
				time.Sleep(slowServer)
			}
			if p.frozen.Load() {
				return true
			}
		}
		return refuse(conn, packet)
	}
	var err error
	if p.client, err = dialTo(t, p.pipeBroker, "mqtt://a,mqtt://b", Options{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	return p
}

// lag returns how long the client takes to connect again.
func (p *pair) lag(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for !p.client.Connection().Connected {
		if time.Since(began) > time.Hour {
			t.Fatal("the client does not connect again")
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// longestPause is the longest pause of an average.
func longestPause(average time.Duration) time.Duration { return average * 3 / 2 }

func TestASilentServerCostsAtMostOneShortTimeoutWhileAnotherAnswers(t *testing.T) {
	for takeover := 250 * time.Millisecond; takeover < soonFor; takeover += 250 * time.Millisecond {
		t.Run(takeover.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				p.frozen.Store(true)
				p.cut()
				time.Sleep(takeover)
				p.set(nil)
				if lag := p.lag(t); lag > firstTimeout+longestPause(soonMax) {
					t.Errorf("it takes %v", lag)
				}
			})
		})
	}
}

func TestAClientWithSeveralAddressesAsksForANewActiveServerOftenAtFirst(t *testing.T) {
	for takeover := 250 * time.Millisecond; takeover < soonFor-longestPause(soonMax); takeover += 250 * time.Millisecond {
		t.Run(takeover.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				p.set(map[string]string{"a": "", "b": "a"})
				before := len(p.dialled())
				p.cut()
				time.Sleep(takeover)
				attempts := len(p.dialled()) - before
				p.set(map[string]string{"a": ""})
				if lag := p.lag(t); lag > longestPause(soonMax) {
					t.Errorf("it takes %v", lag)
				}
				// The first pauses are shorter, and each attempt after a pause asks both.
				if most := 2 * (6 + int(takeover/(soonMax/2))); attempts > most {
					t.Errorf("%d attempts, want %d at most", attempts, most)
				}
			})
		})
	}
}

// It needs longer than the short timeout. The other one answers, but only stands by.
func TestASlowServerIsReachedBesideOneThatStandsBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.slow.Store(true)
		p.cut()
		synctest.Wait() // until the loss was noticed
		if lag := p.lag(t); lag > 10*time.Minute {
			t.Errorf("it takes %v", lag)
		}
		if got := p.client.Connection().Broker; got != "mqtt://a:1883" {
			t.Error(fmt.Sprint("connected to ", got))
		}
	})
}

// Takeovers follow each other when machines are upgraded.
func TestLossesFollowedByConnectionsOfSomeSecondsDoNotMakeThePausesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.set(nil)
		for range 20 {
			p.cut()
			synctest.Wait() // until the loss was noticed
			if lag := p.lag(t); lag > longestPause(defaultReconnectMin)+time.Millisecond {
				t.Errorf("it takes %v", lag)
			}
			time.Sleep(3 * time.Second)
		}
	})
}
