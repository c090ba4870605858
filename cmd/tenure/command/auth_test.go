//go:build unix

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/transport"
)

// writeCertificate makes a certificate that is its own authority, and returns the names of its files.
func writeCertificate(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	certificate = write(t, name+".pem", "")
	key = certificate + ".key"
	certificates.Write(t, certificates.New(t, name).Own, certificate, key)
	return certificate, key
}

// dialTLS returns a client that trusts a certificate, until the test ends, or why it is not admitted.
func dialTLS(t *testing.T, address, trust string, options transport.Options) (*transport.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	options.ClientID, options.TLS.CAFile = "press-7", trust
	client, err := transport.Dial(ctx, address, options)
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func TestUsersAndCertificatesAreReadAgainOnSIGHUP(t *testing.T) {
	t.Parallel()
	certificate, key := writeCertificate(t, "server")
	served, servedKey := certificate+".served", key+".served"
	install := func(certificate, key string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", `cp "$0" "$1" && cp "$2" "$3"`, certificate, served, key, servedKey).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	install(certificate, key)
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
	p := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--tls-cert", served, "--tls-key", servedKey, "--auth", users)
	address := p.mustPrint(`listening on (mqtts://\S+) .*`)
	hangUp := func(want string) {
		t.Helper()
		seen := len(p.stderr.String())
		p.signal(syscall.SIGHUP)
		await.Until(func() bool { return regexp.MustCompile(want).MatchString(p.stderr.String()[seen:]) })
	}
	for user, password := range map[string]string{"": "", "alice": "guess", "bob": "secret"} {
		options := transport.Options{Username: user, Password: []byte(password)}
		if _, err := dialTLS(t, address, certificate, options); !errors.Is(err, transport.ErrNotAuthorized) && exitCode(err) != exitRefused {
			t.Errorf("%q with password %q: %v", user, password, err)
		}
	}
	withPassword := transport.Options{Username: "alice", Password: []byte("secret")}
	alice, err := dialTLS(t, address, certificate, withPassword)
	if err != nil {
		t.Fatal(err)
	}
	may := func(read, write bool, key string) {
		t.Helper()
		_, got := alice.Get(t.Context(), key)
		_, set := alice.Set(t.Context(), key, []byte("v"), transport.SetOptions{})
		if errors.Is(got, transport.ErrNotAuthorized) == read || errors.Is(set, transport.ErrNotAuthorized) == write {
			t.Errorf("GET %s: %v, SET: %v", key, got, set)
		}
	}
	may(false, true, "press-7/active")
	may(false, false, "press-8/active")

	rewrite("users: [")
	hangUp(`(?s)stays in force.*again" flag=--tls-cert`)
	may(false, true, "press-7/active")

	allow("read", "press-*")
	renewed, renewedKey := writeCertificate(t, "server")
	install(renewed, renewedKey)
	hangUp(`(?s)again" flag=--auth.*again" flag=--tls-cert`)
	may(true, false, "press-7/active")
	_ = alice.Close()
	if _, err := dialTLS(t, address, renewed, withPassword); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
	if _, err := dialTLS(t, address, certificate, withPassword); err == nil {
		t.Error("the server still has the old certificate")
	}
}

func TestAClientCertificateOfAGivenAuthoritySuffices(t *testing.T) {
	t.Parallel()
	certificate, key := writeCertificate(t, "server")
	clientCertificate, clientKey := writeCertificate(t, "press-7")
	p := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, "--client-ca", clientCertificate)
	address := p.mustPrint(`listening on (mqtts://\S+) .*`)
	withCertificate := transport.Options{TLS: transport.TLSOptions{CertFile: clientCertificate, KeyFile: clientKey}}
	press, err := dialTLS(t, address, certificate, withCertificate)
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, press, "k", "v")
	if _, err := dialTLS(t, address, certificate, transport.Options{}); err == nil {
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
		if _, err := settings.readFiles(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), fmt.Sprintf("file=%s mode=%04o", users, test.mode)); got != test.warn {
			t.Errorf("mode %o: the log is %q", test.mode, log.String())
		}
	}
}

func TestTheUserOfAPrintedHashIsAdmitted(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("x", 72)
	for stdin, password := range map[string]string{
		"let me in\nor not\n": "let me in", "let me in": "let me in", "  gr\u00fc\u00df \n": "  gr\u00fc\u00df ", longest + "\r\n": longest,
	} {
		got := invoke(t, stdin, "password")
		if cost, err := bcrypt.Cost(bytes.TrimSpace([]byte(got.stdout))); got.code != 0 || got.stderr != "" || cost != bcrypt.DefaultCost || err != nil {
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
	for stdin, want := range map[string]string{
		"": "is empty", "\nlet me in\n": "is empty", strings.Repeat("x", 73) + "\n": "72 bytes", strings.Repeat("x", 1<<20): "standard input: ",
	} {
		if got := invoke(t, stdin, "password"); got.code != exitFailure || !strings.Contains(got.stderr, want) {
			t.Errorf("%.80q: %+v, want %q", stdin, got, want)
		}
	}
}
