//go:build unix

package command

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server/access"
)

const invokeTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"

// writeCertificate makes a certificate that is its own authority, and returns it with the names of
// its files.
func writeCertificate(t *testing.T, dir, name string) (leaf *x509.Certificate, certificate, key string) {
	t.Helper()
	made := certificates.New(t, name).Own
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	certificates.Write(t, made, certificate, key)
	return made.Leaf, certificate, key
}

// An asker is a plain MQTT client over TLS that sends requests to the store.
type asker struct {
	t       *testing.T
	client  *paho.Client
	replies chan string
}

func connectTLS(t *testing.T, address, user, password string, trust *x509.Certificate, certificates ...tls.Certificate) (*asker, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(trust)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, Certificates: certificates}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	a := &asker{t: t, replies: make(chan string, 1)}
	a.client = paho.NewClient(paho.ClientConfig{
		Conn: packets.NewThreadSafeConn(conn),
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
			a.replies <- string(r.Packet.Payload)
			return true, nil
		}},
	})
	connect := &paho.Connect{ClientID: "press-7", CleanStart: true, KeepAlive: 60}
	if user != "" {
		connect.UsernameFlag, connect.Username, connect.PasswordFlag, connect.Password = true, user, true, []byte(password)
	}
	if _, err := a.client.Connect(ctx, connect); err != nil {
		_ = conn.Close()
		return nil, err
	}
	t.Cleanup(func() { _ = a.client.Disconnect(&paho.Disconnect{}) })
	_, err = a.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "clients/press-7/response", QoS: 1}}})
	return a, err
}

func (a *asker) ask(words ...string) string {
	a.t.Helper()
	payload := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		payload += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	request := &paho.Publish{QoS: 1, Topic: invokeTopic, Payload: []byte(payload), Properties: &paho.PublishProperties{
		ResponseTopic: "clients/press-7/response", CorrelationData: fmt.Appendf(nil, "%016d", time.Now().UnixNano()),
	}}
	request.Properties.User.Add("__ts", "0:0:press-7")
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	if _, err := a.client.Publish(ctx, request); err != nil {
		a.t.Fatal(err)
	}
	select {
	case reply := <-a.replies:
		return reply
	case <-ctx.Done():
		a.t.Fatal("no reply")
		return ""
	}
}

func TestUsersAndCertificatesAreReadAgainOnSIGHUP(t *testing.T) {
	dir := t.TempDir()
	leaf, certificate, key := writeCertificate(t, dir, "server")
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := write(t, "users.yaml", "")
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allow := func(right, key string) {
		t.Helper()
		rewrite(fmt.Sprintf("users:\n  - name: alice\n    password: %s\n    clients: [press-7]\nrules:\n  - users: [alice]\n    %s: [%q]\n", hash, right, key))
	}
	allow("write", "press-7/*")
	p := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, "--auth", users)
	address := p.mustPrint(`listening on mqtts://(\S+) .*`)
	hangUp := func(want string) {
		t.Helper()
		seen := len(p.stderr.String())
		p.signal(syscall.SIGHUP)
		await.Until(func() bool { return regexp.MustCompile(want).MatchString(p.stderr.String()[seen:]) })
	}
	for _, test := range []struct{ name, user, password string }{
		{"a client without a user", "", ""}, {"a wrong password", "alice", "guess"}, {"an unknown user", "bob", "secret"},
	} {
		if _, err := connectTLS(t, address, test.user, test.password, leaf); err == nil {
			t.Errorf("%s was admitted", test.name)
		}
	}
	alice, err := connectTLS(t, address, "alice", "secret", leaf)
	if err != nil {
		t.Fatal(err)
	}
	const denied = "-ERR not authorized\r\n"
	expect := func(want string, words ...string) {
		t.Helper()
		if got := alice.ask(words...); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
	expect("+OK\r\n", "SET", "press-7/active", "v")
	expect(denied, "GET", "press-7/active")
	expect(denied, "SET", "press-8/active", "v")

	rewrite("users: [")
	hangUp(`(?s)stays in force.*again" flag=--tls-cert`)
	expect("+OK\r\n", "SET", "press-7/active", "v")

	allow("read", "press-*")
	renewed, _, _ := writeCertificate(t, dir, "server")
	hangUp(`(?s)again" flag=--auth.*again" flag=--tls-cert`)
	expect("$1\r\nv\r\n", "GET", "press-7/active")
	expect(denied, "SET", "press-7/active", "w")
	if _, err := connectTLS(t, address, "alice", "secret", renewed); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
	if _, err := connectTLS(t, address, "alice", "secret", leaf); err == nil {
		t.Error("the server still has the old certificate")
	}
}

func TestAClientCertificateOfAGivenAuthoritySuffices(t *testing.T) {
	dir := t.TempDir()
	leaf, certificate, key := writeCertificate(t, dir, "server")
	client, clientCertificate, clientKey := writeCertificate(t, dir, "press-7")
	pair, err := tls.LoadX509KeyPair(clientCertificate, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, "--client-ca", clientCertificate)
	address := p.mustPrint(`listening on mqtts://(\S+) .*`)
	press, err := connectTLS(t, address, "", "", leaf, pair)
	if err != nil {
		t.Fatalf("%s: %v", client.Subject, err)
	}
	if got := press.ask("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: %q", got)
	}
	if _, err := connectTLS(t, address, "", "", leaf); err == nil {
		t.Error("a client without a certificate was admitted")
	}
}

func TestServeWarnsIfOthersMayReadTheFileOfUsers(t *testing.T) {
	users := write(t, "users.yaml", "users:\n  - name: alice\n")
	for _, test := range []struct {
		mode os.FileMode
		warn bool
	}{{0o600, false}, {0o700, false}, {0o640, true}, {0o604, true}, {0o620, true}, {0o602, true}, {0o611, false}} {
		if err := os.Chmod(users, test.mode); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		settings := serveFlags{auth: users}
		settings.Logger = slog.New(slog.NewTextHandler(&log, nil))
		reloads, err := settings.readFiles()
		if err != nil {
			t.Fatal(err)
		}
		warned := func() bool {
			defer log.Reset()
			return strings.Count(log.String(), "level=WARN") == 1 && strings.Contains(log.String(), fmt.Sprintf("mode=%04o", test.mode)) && strings.Contains(log.String(), users)
		}
		if got := warned(); got != test.warn {
			t.Errorf("mode %o at start: warned %v", test.mode, got)
		}
		if err := reloads[0].read(); err != nil {
			t.Fatal(err)
		}
		if got := warned(); got != test.warn {
			t.Errorf("mode %o at SIGHUP: warned %v", test.mode, got)
		}
	}
}

func TestTheUserOfAPrintedHashIsAdmitted(t *testing.T) {
	longest := strings.Repeat("x", 72)
	for stdin, password := range map[string]string{
		"let me in\n": "let me in", "let me in": "let me in", "let me in\r\n": "let me in", "let me in\nor not\n": "let me in",
		"  let me in \n": "  let me in ", "gr\u00fc\u00df\n": "gr\u00fc\u00df", longest + "\r\n": longest,
	} {
		got := invoke(t, stdin, "password", "--cost", "4")
		if cost, err := bcrypt.Cost(bytes.TrimSpace([]byte(got.stdout))); got.code != 0 || got.stderr != "" || cost != 4 || err != nil {
			t.Errorf("%q: %+v, %v", stdin, got, err)
		}
		users, err := access.Parse(fmt.Appendf(nil, "users:\n  - name: a\n    password: %s", got.stdout))
		if err != nil {
			t.Fatal(err)
		}
		if err := users.Authenticate(access.Credentials{User: "a", Password: []byte(password)}); err != nil {
			t.Errorf("%q: %v", stdin, err)
		}
	}
}

func TestWhatIsNoPasswordIsRefused(t *testing.T) {
	for _, test := range []struct {
		stdin io.Reader
		want  string
	}{
		{strings.NewReader(""), "1 to 72 bytes"},
		{strings.NewReader("\nlet me in\n"), "1 to 72 bytes"},
		{strings.NewReader(strings.Repeat("x", 73) + "\n"), "1 to 72 bytes"},
		{strings.NewReader(strings.Repeat("x", 1<<20)), "1 to 72 bytes"},
		{iotest.ErrReader(errors.New("pipe burst")), "standard input: pipe burst"},
	} {
		command := passwordCommand()
		command.SilenceUsage, command.SilenceErrors = true, true
		command.SetIn(test.stdin)
		command.SetArgs(nil)
		command.SetContext(t.Context())
		if err := command.RunE(command, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
