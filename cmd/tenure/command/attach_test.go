//go:build unix

package command

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
)

func TestAttachSaysWhenItAnswersAndASecondStoreEnds(t *testing.T) {
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	attach := startAttached(t, broker, "--log-level", "warn")
	mustSet(t, dialTest(t, broker, "client"), "k", "v")
	got := tenure(t, "", nil, "attach", "--memory", broker)
	if got.code == 0 || !strings.Contains(got.stderr, "another state store answers on this broker") || !strings.Contains(got.stderr, "with --wait this one stands by") {
		t.Errorf("a second store: %+v", got)
	}
	attach.mustEndAfter(syscall.SIGTERM, 0, "stopped")
	if log := attach.stderr.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "a restart forgets every key, lease and fence") {
		t.Errorf("the log is\n%s", log)
	}
}

func TestCommandsReachABrokerOverWebSocket(t *testing.T) {
	t.Parallel()
	address := mosquitto.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	mosquitto.Start(t, fmt.Sprintf("listener %s 127.0.0.1\nprotocol websockets\n", port))
	url := "ws://" + address + "/mqtt"
	startAttached(t, url)
	for line, want := range map[string]string{"set k v": "", "doctor": "the broker speaks MQTT 5"} {
		if got := invoke(t, "", append(strings.Fields(line), "--broker", url)...); got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("tenure %s: %+v", line, got)
		}
	}
}

func TestAttachGoesOnWithItsDataUnlessAnotherStoreHasAnswered(t *testing.T) {
	t.Parallel()
	url, dir := "mqtt://"+mosquitto.Start(t, "").Address, filepath.Join(t.TempDir(), "data")
	first := begin(t, "attach", url, "--data", dir)
	first.mustPrint("attached to .*")
	mustSet(t, dialTest(t, url, "client"), "k", "v")
	first.mustEndAfter(os.Kill, 137)
	second := startAttached(t, url)
	mustSet(t, dialTest(t, url, "client"), "k", "v")
	second.mustEndAfter(os.Kill, 137)
	got := tenure(t, "", nil, "attach", url, "--data", dir)
	if got.code == 0 || !strings.Contains(got.stderr, "another state store has answered on this broker") || !strings.Contains(got.stderr, "The data is in "+dir+": move it away") {
		t.Errorf("after another store: %+v", got)
	}
}

func TestAttachWithWaitIsASpareAgainAfterAnotherStoreTookItsPlace(t *testing.T) {
	t.Parallel()
	url := "mqtt://" + mosquitto.Start(t, "").Address
	first := startAttached(t, url, "--wait", "--hold-off", "1ms")
	second := begin(t, "attach", url, "--wait", "--hold-off", "1ms")
	attached, standingBy := "attached to "+regexp.QuoteMeta(url)+".*", "standing by on "+regexp.QuoteMeta(url)
	second.mustPrint(standingBy)
	client := dialTest(t, url, "client")
	mustSet(t, client, "k", "of the first")
	// The broker gives up the first store after a while, and the second answers.
	first.signal(syscall.SIGSTOP)
	second.mustPrint(attached)
	first.signal(syscall.SIGCONT)
	first.mustPrint(standingBy)
	second.signal(os.Kill)
	first.mustPrint(attached)
	if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Exists {
		t.Errorf("the first store has its old data: %q, %v", entry.Value, err)
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
	flags := []string{"--tls-cert", storeCertificate, "--tls-key", storeKey, "--tls-ca"}
	refused := begin(t, append([]string{"attach", "--memory", url}, append(flags, otherCertificate)...)...)
	await.Until(func() bool { return strings.Contains(refused.stderr.String(), "signed by an unknown authority") })
	startAttached(t, url, append(flags, certificate)...)
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
