package command

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server/access"
)

const (
	patience    = 20 * time.Second
	invokeTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
)

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

// A serveProcess is a running tenure serve.
type serveProcess struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	log     *bufio.Scanner
}

func startServe(t *testing.T, flags ...string) *serveProcess {
	t.Helper()
	p := &serveProcess{t: t, cmd: exec.Command(build(t), append([]string{"serve", "--memory", "--addr", "127.0.0.1:0"}, flags...)...)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.address, _ = launch(t, p.cmd, "listening on mqtts://")
	p.log = bufio.NewScanner(stderr)
	return p
}

// hangUp sends SIGHUP and waits for lines in the log, in order.
func (p *serveProcess) hangUp(wants ...string) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	for _, want := range wants {
		for found := false; !found; found = strings.Contains(p.log.Text(), want) {
			if !p.log.Scan() {
				p.t.Fatalf("the log ends without %q", want)
			}
		}
	}
}

func TestUsersAndCertificatesAreReadAgainOnSIGHUP(t *testing.T) {
	dir := t.TempDir()
	leaf, certificate, key := writeCertificate(t, dir, "server")
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(dir, "users.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allow := func(right, key string) {
		t.Helper()
		write(fmt.Sprintf("users:\n  - name: alice\n    password: %s\n    clients: [press-7]\nrules:\n  - users: [alice]\n    %s: [%q]\n", hash, right, key))
	}
	allow("write", "press-7/*")
	p := startServe(t, "--tls-cert", certificate, "--tls-key", key, "--auth", users)
	for _, test := range []struct{ name, user, password string }{
		{"a client without a user", "", ""}, {"a wrong password", "alice", "guess"}, {"an unknown user", "bob", "secret"},
	} {
		if _, err := connectTLS(t, p.address, test.user, test.password, leaf); err == nil {
			t.Errorf("%s was admitted", test.name)
		}
	}
	alice, err := connectTLS(t, p.address, "alice", "secret", leaf)
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

	write("users: [")
	p.hangUp("stays in force", `again" flag=--tls-cert`)
	expect("+OK\r\n", "SET", "press-7/active", "v")

	allow("read", "press-*")
	renewed, _, _ := writeCertificate(t, dir, "server")
	p.hangUp(`again" flag=--auth`, `again" flag=--tls-cert`)
	expect("$1\r\nv\r\n", "GET", "press-7/active")
	expect(denied, "SET", "press-7/active", "w")
	if _, err := connectTLS(t, p.address, "alice", "secret", renewed); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
	if _, err := connectTLS(t, p.address, "alice", "secret", leaf); err == nil {
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
	p := startServe(t, "--tls-cert", certificate, "--tls-key", key, "--client-ca", clientCertificate)
	press, err := connectTLS(t, p.address, "", "", leaf, pair)
	if err != nil {
		t.Fatalf("%s: %v", client.Subject, err)
	}
	if got := press.ask("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: %q", got)
	}
	if _, err := connectTLS(t, p.address, "", "", leaf); err == nil {
		t.Error("a client without a certificate was admitted")
	}
}

func TestServeWarnsIfOthersMayReadTheFileOfUsers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no mode bits for the group and for others")
	}
	users := filepath.Join(t.TempDir(), "users.yaml")
	if err := os.WriteFile(users, []byte("users:\n  - name: alice\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode os.FileMode
		warn bool
	}{{0o600, false}, {0o400, false}, {0o700, false}, {0o640, true}, {0o604, true}, {0o644, true}, {0o620, true}, {0o602, true}, {0o611, false}} {
		if err := os.Chmod(users, test.mode); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		settings := serveSettings{auth: users}
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

func TestAnEncryptedKeyOfACertificateIsRefusedWithTheCure(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("unreadable")})
	if err := os.WriteFile(key, text, 0o600); err != nil {
		t.Fatal(err)
	}
	flags := certificateFlags{key, key}
	if _, err := flags.read(); err == nil || !strings.HasPrefix(err.Error(), "--tls-key: ") || !strings.Contains(err.Error(), "openssl pkey -in "+key) {
		t.Errorf("%v", err)
	}
}

// password runs the command and returns what it prints.
func password(stdin io.Reader, arguments ...string) (stdout, stderr string, err error) {
	var out, faults strings.Builder
	command := passwordCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetIn(stdin)
	command.SetOut(&out)
	command.SetErr(&faults)
	command.SetArgs(append([]string{}, arguments...))
	err = command.ExecuteContext(context.Background())
	return out.String(), faults.String(), err
}

func TestTheUserOfAPrintedHashIsAdmitted(t *testing.T) {
	longest := strings.Repeat("x", 72)
	for _, test := range []struct{ name, stdin, password string }{
		{"a line", "let me in\n", "let me in"},
		{"a line without its end", "let me in", "let me in"},
		{"a line as Windows ends it", "let me in\r\n", "let me in"},
		{"the first of several lines", "let me in\nor not\n", "let me in"},
		{"spaces around it are part of it", "  let me in \n", "  let me in "},
		{"what is not ASCII", "gr\u00fc\u00df\n", "gr\u00fc\u00df"},
		{"the longest", longest + "\r\n", longest},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, err := password(strings.NewReader(test.stdin), "--cost", "4")
			if err != nil || stderr != "" || strings.Count(stdout, "\n") != 1 {
				t.Fatalf("%v; printed %q and %q", err, stdout, stderr)
			}
			users, err := access.Parse(fmt.Appendf(nil, "users:\n  - name: a\n    password: %s", stdout))
			if err != nil {
				t.Fatal(err)
			}
			if err := users.Authenticate(access.Credentials{User: "a", Password: []byte(test.password)}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAHashIsInJSON(t *testing.T) {
	stdout, _, err := password(strings.NewReader("let me in\n"), "--cost", "4", "--json")
	hash, found := strings.CutPrefix(stdout, `{"hash":"`)
	hash, ended := strings.CutSuffix(hash, "\"}\n")
	if err != nil || !found || !ended || bcrypt.CompareHashAndPassword([]byte(hash), []byte("let me in")) != nil {
		t.Errorf("%v; printed %q", err, stdout)
	}
}

func TestAHashThatCannotBePrintedIsAnError(t *testing.T) {
	command := passwordCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetIn(strings.NewReader("let me in\n"))
	full := errors.New("the disk is full")
	reader, writer := io.Pipe()
	reader.CloseWithError(full)
	command.SetOut(writer)
	command.SetArgs([]string{"--cost", "4"})
	if err := command.ExecuteContext(t.Context()); !errors.Is(err, full) {
		t.Errorf("Execute: %v, want %v", err, full)
	}
}

func TestPasswordUsesTheGivenCost(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		want      int
	}{
		{"none", nil, 10},
		{"the lowest", []string{"--cost", "4"}, 4},
		{"another", []string{"--cost=5"}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := password(strings.NewReader("let me in\n"), test.arguments...)
			if err != nil {
				t.Fatal(err)
			}
			if cost, err := bcrypt.Cost([]byte(strings.TrimSpace(stdout))); cost != test.want || err != nil {
				t.Errorf("cost %d, %v; want %d", cost, err, test.want)
			}
		})
	}
}

func TestPasswordRefusesWrongInputAndNamesTheCure(t *testing.T) {
	for _, test := range []struct {
		name      string
		stdin     io.Reader
		arguments []string
		want      string
	}{
		{"nothing", strings.NewReader(""), nil, "no password"},
		{"an empty line", strings.NewReader("\nlet me in\n"), nil, "no password"},
		{"a byte too many", strings.NewReader(strings.Repeat("x", 73) + "\n"), nil, "only 72 bytes"},
		{"no end", strings.NewReader(strings.Repeat("x", 1<<20)), nil, "only 72 bytes"},
		{"an input that breaks", iotest.ErrReader(errors.New("pipe burst")), nil, "standard input: pipe burst"},
		{"a cost that is too low", strings.NewReader("x\n"), []string{"--cost", "3"}, "choose 4 to 16"},
		{"a cost that is too high", strings.NewReader("x\n"), []string{"--cost", "17"}, "choose 4 to 16"},
		{"the password as an argument, where others can see it", strings.NewReader("x\n"), []string{"x"}, "takes no arguments"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := password(test.stdin, test.arguments...)
			if err == nil || stdout != "" || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q; printed %q", err, test.want, stdout)
			}
		})
	}
}
