//go:build unix

package release

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// startUntil starts a program, and returns when a line of its output has this text. The program ends with
// the test.
func startUntil(t *testing.T, ready string, cmd *exec.Cmd) {
	t.Helper()
	output, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = input, input
	err = cmd.Start()
	_ = input.Close()
	if err != nil {
		t.Fatal(err)
	}
	found, ended := make(chan struct{}), make(chan struct{})
	var said strings.Builder // until found is closed
	go func() {
		defer close(ended)
		isFound := false
		for lines := bufio.NewScanner(output); lines.Scan(); {
			switch {
			case isFound: // what follows must not fill the pipe
			case strings.Contains(lines.Text(), ready):
				isFound = true
				close(found)
			default:
				said.WriteString(lines.Text() + "\n")
			}
		}
		_ = output.Close()
		_ = await.Result(cmd.Wait)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		await.Receive(ended)
	})
	select {
	case <-found:
	case <-ended:
		t.Fatalf("%s ended without %q:\n%s", cmd.Path, ready, said.String())
	case <-ctx.Done():
		t.Fatalf("%s does not say %q", cmd.Path, ready)
	}
}

// mosquitto runs with the configuration as it is, except for where its files are, and a store and two
// clients use it.
func TestMosquittoTakesItsConfigurationAndAStoreWorksOnIt(t *testing.T) {
	t.Parallel()
	broker, passwords, publish := prerequisite.Program(t, "mosquitto", "mosquitto"), prerequisite.Program(t, "mosquitto_passwd", "mosquitto"), prerequisite.Program(t, "mosquitto_pub", "mosquitto-clients")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	config, err := os.ReadFile("../../deploy/mosquitto/tenure.conf")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../../deploy/mosquitto/tenure.acl")
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	_, port, _ := net.SplitHostPort(address)
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
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
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
	clientReading := func(input, user, password, verb string, arguments ...string) (string, int) {
		stdin, err := os.Open(input)
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		cmd := exec.CommandContext(ctx, built.Path(t), append([]string{verb, "--broker", url, "--client-id", user, "--username", user, "--password-file", file(password), "--tls-ca", file("certs/server.pem")}, arguments...)...)
		cmd.Stdin = stdin
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	client := func(user, password, verb string, arguments ...string) (string, int) {
		return clientReading(os.DevNull, user, password, verb, arguments...)
	}
	if out, code := client("gateway-a", "right", "set", "press-7/setpoint", "42"); code != 0 {
		t.Errorf("set: %d, %s", code, out)
	}
	if out, code := client("gateway-b", "right", "get", "press-7/setpoint"); code != 0 || strings.TrimSpace(out) != "42" {
		t.Errorf("get: %d, %s", code, out)
	}
	const refused = 104
	if out, code := client("gateway-b", "wrong", "get", "press-7/setpoint"); code != refused {
		t.Errorf("get with a wrong password: %d, %s", code, out)
	}
	// The doctor goes all steps with the rights of an operator, and takes no client's connection.
	if out, code := client("operator", "right", "doctor"); code != 0 {
		t.Errorf("doctor: %d, %s", code, out)
	}
	notification := fmt.Sprintf("clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/%X/command/notify/%X", "gateway-a", "press-7/active")
	for _, forged := range []struct{ user, topic string }{
		{"gateway-b", "clients/gateway-a/response"},
		{"gateway-b", notification},
		{"statestore", notification}, // its id is the first level of the topic
		{"operator", "clients/gateway-a/response"},
	} {
		forge := exec.CommandContext(ctx, publish, "-V", "5", "-h", "127.0.0.1", "-p", port, "--cafile", file("certs/server.pem"), "-u", forged.user, "-P", "secret",
			"-q", "1", "-t", forged.topic, "-m", "forged")
		if out, err := forge.CombinedOutput(); !strings.Contains(strings.ToLower(string(out)), "not authorized") {
			t.Errorf("%s writes to %s: %v, %s", forged.user, forged.topic, err, out)
		}
	}
	// A value of a million bytes is not too large. What is larger is not sent by a client of MQTT 5, which
	// knows the broker's limit; the broker disconnects others.
	sized := func(size int) string {
		name := file(fmt.Sprintf("value-%d", size))
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if out, code := clientReading(sized(1_000_000), "gateway-a", "right", "set", "large", "-"); code != 0 {
		t.Errorf("a value of 1,000,000 bytes: %d, %s", code, out)
	}
	excess := exec.CommandContext(ctx, publish, "-V", "311", "-h", "127.0.0.1", "-p", port, "--cafile", file("certs/server.pem"), "-u", "gateway-a", "-P", "secret",
		"-q", "1", "-t", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", "-f", sized(2<<20))
	if out, err := excess.CombinedOutput(); err == nil {
		t.Errorf("the broker takes a message of 2 MiB: %s", out)
	}
}
