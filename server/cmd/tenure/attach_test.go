package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// startMosquitto runs a broker until the test ends, which is skipped without the program,
// and fails where CI is true.
func startMosquitto(t *testing.T) (address string) {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto") // not in everybody's PATH
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("mosquitto is not installed: apt-get install mosquitto")
		}
		t.Skip("SKIPPED: mosquitto is not installed (apt-get install mosquitto): nothing here was tested")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	_ = listener.Close()
	_, port, _ := net.SplitHostPort(address)
	config := filepath.Join(t.TempDir(), "mosquitto.conf")
	if err := os.WriteFile(config, []byte("listener "+port+" 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	broker := exec.Command(path, "-c", config)
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = broker.Process.Kill()
		_ = broker.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return address
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestServeAttachSaysWhenItAnswersAndASecondOneEnds(t *testing.T) {
	path, url := build(t), "mqtt://"+startMosquitto(t)
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
	if err := cmd.Wait(); err != nil || strings.Join(rest, "\n") != "stopped" || stderr.String() != "" {
		t.Errorf("%v; said %q; standard error %q", err, rest, stderr.String())
	}
}

func TestServeAttachRefusesWhatHasNoEffectAndNamesTheCure(t *testing.T) {
	path := build(t)
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"an address to listen on", []string{"--attach", "mqtt://localhost", "--addr", ":1883"}, "with --attach there is none"},
		{"users", []string{"--attach", "mqtt://localhost", "--auth", "users.yaml"}, "tell the broker"},
		{"a user without a broker", []string{"--attach-user", "store"}, "give that too"},
		{"a password that is not there", []string{"--attach", "mqtt://localhost", "--attach-password-file", "no.txt"}, "no.txt"},
		{"an authority that is not there", []string{"--attach", "mqtts://localhost", "--attach-ca", "no.pem"}, "no.pem"},
		{"an authority without TLS", []string{"--attach", "mqtt://localhost", "--attach-ca", "attach_test.go"}, "no certificate in PEM"},
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
