package command

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

func TestAttachSaysWhenItAnswersAndASecondStoreEnds(t *testing.T) {
	t.Parallel()
	path, url := build(t), "mqtt://"+mosquitto.Start(t, "").Address
	cmd := exec.Command(path, "attach", "--memory", url)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_, lines := launch(t, cmd, "attached to "+url)
	client, err := transport.Dial(t.Context(), url, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
	out, err := exec.Command(path, "attach", "--memory", url).CombinedOutput()
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
	if err := await.Result(cmd.Wait); err != nil || strings.Join(rest, "\n") != "stopped" {
		t.Errorf("%v; said %q; standard error %q", err, rest, stderr.String())
	}
	log := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	want := []string{"a restart forgets every key, lease and fence", "msg=stopped"}
	if !slices.EqualFunc(log, want, strings.Contains) {
		t.Errorf("the log is\n%s\nwant lines with %q", stderr.String(), want)
	}
}

func TestCommandsReachABrokerOverWebSocket(t *testing.T) {
	t.Parallel()
	path, address := build(t), mosquitto.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	mosquitto.Start(t, fmt.Sprintf("listener %s 127.0.0.1\nprotocol websockets\n", port))
	url := "ws://" + address + "/mqtt"
	launch(t, exec.Command(path, "attach", "--memory", url), "attached to "+url)
	for _, command := range []struct{ line, want string }{
		{"set k v", ""},
		{"get k", "v"},
		{"doctor", "the broker speaks MQTT 5"},
	} {
		arguments := append(strings.Fields(command.line), "--broker", url)
		if out, err := exec.Command(path, arguments...).CombinedOutput(); err != nil || !strings.Contains(string(out), command.want) {
			t.Errorf("tenure %s: %v, said\n%s", command.line, err, out)
		}
	}
}

func TestAttachGoesOnWithItsDataAfterAKillUnlessAnotherStoreHasAnswered(t *testing.T) {
	t.Parallel()
	path, url, dir := build(t), "mqtt://"+mosquitto.Start(t, "").Address, filepath.Join(t.TempDir(), "data")
	serve := func(use func(*transport.Client), arguments ...string) {
		t.Helper()
		cmd := exec.Command(path, append([]string{"attach", url}, arguments...)...)
		launch(t, cmd, "attached to "+url)
		client, err := transport.Dial(t.Context(), url, transport.Options{})
		if err != nil {
			t.Fatal(err)
		}
		use(client)
		_ = client.Close()
		_ = cmd.Process.Kill()
		_ = await.Result(cmd.Wait)
	}
	write := func(client *transport.Client) {
		if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
			t.Error(err)
		}
	}
	read := func(client *transport.Client) {
		if entry, err := client.Get(t.Context(), "k"); err != nil || string(entry.Value) != "v" {
			t.Errorf("after a restart: %q, %v", entry.Value, err)
		}
	}
	serve(write, "--data", dir)
	serve(read, "--data", dir)
	serve(write, "--memory")
	out, err := exec.Command(path, "attach", url, "--data", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another state store has answered on this broker") || !strings.Contains(string(out), "The data is in "+dir+": move it away") {
		t.Errorf("after another store: %v, said\n%s", err, out)
	}
}

// The broker asks for a certificate and takes its subject for the user name.
func TestAttachOverTLSShowsItsCertificateAndTrustsOnlyTheGivenAuthority(t *testing.T) {
	t.Parallel()
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
	broker := mosquitto.Start(t, fmt.Sprintf("cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\nuse_identity_as_username true\n",
		trusted, certificate, key))
	url := "mqtts://" + broker.Address
	path := build(t)

	refused := exec.Command(path, "attach", "--memory", url, "--tls-ca", otherCertificate, "--tls-cert", storeCertificate, "--tls-key", storeKey)
	log, err := refused.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := refused.Start(); err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(log); !lines.Scan() || !strings.Contains(lines.Text(), "signed by an unknown authority") {
		t.Errorf("a broker with a certificate of another authority: %q", lines.Text())
	}
	_ = refused.Process.Kill()
	_ = await.Result(refused.Wait)

	cmd := exec.Command(path, "attach", "--memory", url, "--tls-ca", certificate, "--tls-cert", storeCertificate, "--tls-key", storeKey)
	launch(t, cmd, "attached to "+url)
	pair, err := tls.LoadX509KeyPair(clientCertificate, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	press, err := connectTLS(t, broker.Address, "", "", leaf, pair)
	if err != nil {
		t.Fatal(err)
	}
	if got := press.ask("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: %q", got)
	}
}

func TestAttachRefusesWrongUsageAndNamesTheCure(t *testing.T) {
	t.Parallel()
	path := build(t)
	_, certificate, _ := writeCertificate(t, t.TempDir(), "store")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"no broker", nil, exitUsage, "give the URL of the broker, like mqtt://localhost:1883"},
		{"two brokers", []string{"mqtt://a", "mqtt://b"}, exitUsage, "one store serves one broker"},
		{"an address to listen on", []string{"mqtt://localhost", "--addr", ":1883"}, exitUsage, "unknown flag: --addr"},
		{"users, and credentials in the URL", []string{"mqtt://store:secret@localhost", "--auth", "users.yaml"}, exitUsage, "unknown flag: --auth"},
		{"credentials that break the URL apart", []string{"mqtt://store:secret/1@localhost"}, exitUsage, "like mqtt://host:1883"},
		{"an unknown flag", []string{"mqtt://localhost", "--urs", "x"}, exitUsage, "unknown flag: --urs\n"},
		{"a missing file with the password", []string{"mqtt://localhost", "--password-file", "no.txt"}, exitUsage, "no.txt"},
		{"an empty password", []string{"mqtt://localhost", "--password-file", empty}, exitUsage, "is empty"},
		{"a missing file with the authority", []string{"mqtts://localhost", "--tls-ca", "no.pem"}, exitUsage, "no.pem"},
		{"an authority that is no certificate", []string{"mqtts://localhost", "--tls-ca", "attach_test.go"}, exitUsage, "no certificate in PEM"},
		{"an authority without TLS", []string{"mqtt://localhost", "--tls-ca", certificate}, exitUsage, "tenure: --tls-ca, --tls-cert or --tls-key is set, and "},
		{"a certificate without its key", []string{"mqtts://localhost", "--tls-cert", certificate}, exitUsage, "both --tls-cert and --tls-key"},
		{"a certificate that is none", []string{"mqtts://localhost", "--tls-cert", "attach_test.go", "--tls-key", "attach_test.go"}, exitUsage, "--tls-cert: "},
		{"another scheme", []string{"http://localhost"}, exitUsage, "like mqtt://host:1883"},
		{"no host", []string{"mqtt://"}, exitUsage, "like mqtt://host:1883"},
		{"credentials in the URL", []string{"mqtt://store:secret@localhost"}, exitUsage, "like mqtt://host:1883"},
		{"a negative limit", []string{"mqtt://localhost", "--max-keys", "-1"}, exitUsage, "0 means no limit"},
		{"a negative hold-off", []string{"mqtt://localhost", "--hold-off", "-1s"}, exitUsage, "0 means none"},
		{"a dialect that does not exist", []string{"mqtt://localhost", "--dialect", "klingon"}, exitUsage, "choose auto, deployed or documented"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !slices.Contains(test.arguments, "--data") {
				test.arguments = append(test.arguments, "--memory")
			}
			out := mustExit(t, test.code, path, append([]string{"attach"}, test.arguments...)...)
			if !strings.Contains(out, test.want) || strings.Contains(out, "secret") {
				t.Errorf("want %q in\n%s", test.want, out)
			}
		})
	}
}
