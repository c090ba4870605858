//go:build unix

package release

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// startUntil starts a program, and returns when a line of its output has this text. The program ends with
// the test.
func startUntil(t *testing.T, ready string, cmd *exec.Cmd) {
	t.Helper()
	var said logbuffer.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = await.Result(cmd.Wait)
	})
	for end := time.Now().Add(await.Patience); !strings.Contains(said.String(), ready); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not say %q:\n%s", cmd.Path, ready, said.String())
		}
	}
}

// mosquitto runs with the configuration as it is, except for where its files are, and a store and two
// clients use it.
func TestMosquittoTakesItsConfigurationAndAStoreWorksOnIt(t *testing.T) {
	t.Parallel()
	broker, passwords, publish := prerequisite.Program(t, "mosquitto", "mosquitto"), prerequisite.Program(t, "mosquitto_passwd", "mosquitto"), prerequisite.Program(t, "mosquitto_pub", "mosquitto-clients")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	config := read(t, "../../deploy/mosquitto/tenure.conf")
	rules := read(t, "../../deploy/mosquitto/tenure.acl")
	address := mosquitto.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	text := strings.ReplaceAll(string(config), "/etc/mosquitto/", dir+"/")
	text = regexp.MustCompile(`(?m)^listener 8883$`).ReplaceAllString(text, "user root\nlistener "+port+" 127.0.0.1")
	if strings.Contains(text, "8883\n") {
		t.Fatalf("another listener:\n%s", text)
	}
	if err := os.Mkdir(file("certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	certificates.Write(t, certificates.New(t, "broker").Own, file("certs/server.pem"), file("certs/server.key"))
	for name, content := range map[string]string{"tenure.conf": text, "tenure.acl": string(rules), "tenure.passwords": "", "right": "secret", "wrong": "guess"} {
		write(t, dir, name, []byte(content))
	}
	for _, user := range []string{"store", "gateway-a", "gateway-b", "operator", "statestore"} {
		if out, err := exec.Command(passwords, "-b", file("tenure.passwords"), user, "secret").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	url := "mqtts://" + address
	startUntil(t, " running", exec.Command(broker, "-c", file("tenure.conf")))
	store := exec.Command(built.Path(t), "attach", url, "--username", "store", "--password-file", file("right"), "--tls-ca", file("certs/server.pem"), "--data", file("data"))
	store.Env = append(os.Environ(), "HOME="+dir)
	startUntil(t, "attached to "+url, store)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := func(input []byte, user, password string, code int, want string, arguments ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, built.Path(t), append(arguments, "--broker", url, "--client-id", user, "--username", user, "--password-file", file(password), "--tls-ca", file("certs/server.pem"))...)
		cmd.Stdin = bytes.NewReader(input)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != code || !strings.Contains(string(out), want) {
			t.Errorf("tenure %q: %v, want exit code %d\n%s", arguments, cmd.ProcessState, code, out)
		}
	}
	const refused = 104
	client(nil, "gateway-a", "right", 0, "", "set", "press-7/setpoint", "42")
	client(nil, "gateway-b", "right", 0, "42", "get", "press-7/setpoint")
	client(nil, "gateway-b", "wrong", refused, "", "get", "press-7/setpoint")
	// The doctor goes all steps with the rights of an operator, and takes no client's connection.
	client(nil, "operator", "right", 0, "", "doctor")
	client(make([]byte, 1_000_000), "gateway-a", "right", 0, "", "set", "large", "-")
	options := []string{"-h", "127.0.0.1", "-p", port, "--cafile", file("certs/server.pem"), "-P", "secret", "-q", "1"}
	notification := fmt.Sprintf("clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/%X/command/notify/%X", "gateway-a", "press-7/active")
	for _, forged := range []struct{ user, topic string }{
		{"gateway-b", "clients/gateway-a/response"},
		{"gateway-b", notification},
		{"statestore", notification}, // its id is the first level of the topic
		{"operator", "clients/gateway-a/response"},
	} {
		forge := exec.CommandContext(ctx, publish, slices.Concat(options, []string{"-V", "5", "-u", forged.user, "-t", forged.topic, "-m", "forged"})...)
		if out, err := forge.CombinedOutput(); !strings.Contains(strings.ToLower(string(out)), "not authorized") {
			t.Errorf("%s writes to %s: %v, %s", forged.user, forged.topic, err, out)
		}
	}
	// A larger message is not sent by a client of MQTT 5, which knows the limit; the broker disconnects others.
	excess := exec.CommandContext(ctx, publish, slices.Concat(options, []string{"-V", "311", "-u", "gateway-a",
		"-t", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", "-f", write(t, dir, "excess", make([]byte, 2<<20))})...)
	if out, err := excess.CombinedOutput(); err == nil {
		t.Errorf("the broker takes a message of 2 MiB: %s", out)
	}
}
