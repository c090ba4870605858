//go:build unix

package command

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
)

func TestAttachSaysWhenItAnswersAndASecondStoreEnds(t *testing.T) {
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	attach := begin(t, "attach", "--memory", broker, "--log-level", "warn")
	attach.mustPrint("attached to .*")
	mustSet(t, dialTest(t, broker, "client"), "k", "v")
	got := tenure(t, "", nil, "attach", "--memory", broker)
	if got.code == 0 || !strings.Contains(got.stderr, "another state store answers on this broker; stop that one first") {
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
	second := begin(t, "attach", "--memory", url)
	second.mustPrint("attached to .*")
	mustSet(t, dialTest(t, url, "client"), "k", "v")
	second.mustEndAfter(os.Kill, 137)
	got := tenure(t, "", nil, "attach", url, "--data", dir)
	if got.code == 0 || !strings.Contains(got.stderr, "another state store has answered on this broker") || !strings.Contains(got.stderr, "The data is in "+dir+": move it away") {
		t.Errorf("after another store: %+v", got)
	}
}

// The broker asks for a certificate and takes its subject for the user name.
func TestAttachOverTLSShowsItsCertificateAndTrustsOnlyTheGivenAuthority(t *testing.T) {
	t.Parallel()
	certificate, key := writeCertificate(t, "broker")
	storeCertificate, storeKey := writeCertificate(t, "store")
	other, _ := writeCertificate(t, "other")
	broker := mosquitto.Start(t, fmt.Sprintf("cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\nuse_identity_as_username true\n",
		storeCertificate, certificate, key))
	url := "mqtts://" + broker.Address
	flags := []string{"--tls-cert", storeCertificate, "--tls-key", storeKey, "--tls-ca"}
	refused := begin(t, append([]string{"attach", "--memory", url}, append(flags, other)...)...)
	await.Until(func() bool { return strings.Contains(refused.stderr.String(), "signed by an unknown authority") })
	startAttached(t, url, append(flags, certificate)...)
	got := invoke(t, "", append(append([]string{"set", "k", "v", "--broker", url}, flags...), certificate)...)
	if got.code != 0 {
		t.Errorf("%+v", got)
	}
}
