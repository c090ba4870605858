package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

func TestServeAttachSaysWhenItAnswersAndASecondOneEnds(t *testing.T) {
	path, url := build(t), "mqtt://"+mosquitto.Start(t, "").Address
	cmd := exec.Command(path, "serve", "--attach", url)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "attached to "+url {
		t.Fatalf("first line %q; standard error: %s", lines.Text(), stderr.String())
	}
	client, err := transport.Dial(t.Context(), url, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
	out, err := exec.Command(path, "serve", "--attach", url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another state store answers on this broker") {
		t.Errorf("a second store: %v, said\n%s", err, out)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if err := await.Result(cmd.Wait); err != nil || strings.Join(rest, "\n") != "stopped" || !warnsOfMemoryOnly(stderr.String()) {
		t.Errorf("%v; said %q; standard error %q", err, rest, stderr.String())
	}
}

// The broker asks for a certificate, whose subject is then the user.
func TestServeAttachOverTLSShowsACertificateAndTrustsTheAuthorityThatIsNamed(t *testing.T) {
	dir := t.TempDir()
	leaf, certificate, key := writeCertificate(t, dir, "broker")
	_, storeCertificate, storeKey := writeCertificate(t, dir, "store")
	_, otherCertificate, _ := writeCertificate(t, dir, "other")
	_, clientCertificate, clientKey := writeCertificate(t, dir, "press-7")
	trusted := filepath.Join(dir, "trusted.pem")
	var authorities []byte
	for _, name := range []string{storeCertificate, clientCertificate} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		authorities = append(authorities, text...)
	}
	if err := os.WriteFile(trusted, authorities, 0o600); err != nil {
		t.Fatal(err)
	}
	address := mosquitto.Start(t, fmt.Sprintf("cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\nuse_identity_as_username true\n",
		trusted, certificate, key)).Address
	url := "mqtts://" + address
	path := build(t)

	refused := exec.Command(path, "serve", "--attach", url, "--attach-ca", otherCertificate, "--attach-cert", storeCertificate, "--attach-key", storeKey)
	log, err := refused.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := refused.Start(); err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(log); !lines.Scan() || !strings.Contains(lines.Text(), "certificate signed by unknown authority") {
		t.Errorf("a broker of another authority: %q", lines.Text())
	}
	_ = refused.Process.Kill()
	_ = await.Result(refused.Wait)

	cmd := exec.Command(path, "serve", "--attach", url, "--attach-ca", certificate, "--attach-cert", storeCertificate, "--attach-key", storeKey)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = await.Result(cmd.Wait)
	})
	if lines := bufio.NewScanner(stdout); !lines.Scan() || lines.Text() != "attached to "+url {
		t.Fatalf("first line %q", lines.Text())
	}
	pair, err := tls.LoadX509KeyPair(clientCertificate, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	press, err := connectTLS(t, address, "", "", leaf, pair)
	if err != nil {
		t.Fatal(err)
	}
	if got := press.ask("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: %q", got)
	}
}

func TestServeAttachRefusesWhatHasNoEffectAndNamesTheCure(t *testing.T) {
	path := build(t)
	_, certificate, _ := writeCertificate(t, t.TempDir(), "store")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"an address to listen on", []string{"--attach", "mqtt://localhost", "--addr", ":1883"}, "with --attach there is none"},
		{"users", []string{"--attach", "mqtt://localhost", "--auth", "users.yaml"}, "tell the broker"},
		{"users, and credentials in the URL", []string{"--attach", "mqtt://store:secret@localhost", "--auth", "users.yaml"}, "tell the broker"},
		{"credentials that take the URL apart", []string{"--attach", "mqtt://store:secret/1@localhost"}, "write mqtt://host:1883"},
		{"a user without a broker", []string{"--attach-user", "store"}, "give that too"},
		{"a password that is not there", []string{"--attach", "mqtt://localhost", "--attach-password-file", "no.txt"}, "no.txt"},
		{"a password that is empty", []string{"--attach", "mqtt://localhost", "--attach-password-file", empty}, "is empty"},
		{"an authority that is not there", []string{"--attach", "mqtts://localhost", "--attach-ca", "no.pem"}, "no.pem"},
		{"an authority that is none", []string{"--attach", "mqtts://localhost", "--attach-ca", "attach_test.go"}, "no certificate in PEM"},
		{"an authority without TLS", []string{"--attach", "mqtt://localhost", "--attach-ca", certificate}, "is not encrypted"},
		{"a certificate without its key", []string{"--attach", "mqtts://localhost", "--attach-cert", certificate}, "both --attach-cert and --attach-key"},
		{"a certificate that is none", []string{"--attach", "mqtts://localhost", "--attach-cert", "attach_test.go", "--attach-key", "attach_test.go"}, "--attach-cert and --attach-key: "},
		{"another scheme", []string{"--attach", "http://localhost"}, "write mqtt://host:1883"},
		{"no host", []string{"--attach", "localhost"}, "write mqtt://host:1883"},
		{"credentials in the URL", []string{"--attach", "mqtt://store:secret@localhost"}, "write mqtt://host:1883"},
		{"a negative limit", []string{"--attach", "mqtt://localhost", "--max-keys", "-1"}, "0 means no limit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(path, append([]string{"serve"}, test.arguments...)...)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), test.want) || strings.Contains(string(out), "secret") {
				t.Errorf("%v, want exit status 1 and %q in\n%s", err, test.want, out)
			}
		})
	}
}
