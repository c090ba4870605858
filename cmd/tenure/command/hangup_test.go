//go:build unix

package command

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

// A terminal that closes sends SIGHUP and no longer reads the log. Neither stops a store.
func TestAStoreSurvivesSIGHUPAndAClosedLog(t *testing.T) {
	path := build(t)
	for _, test := range []struct {
		name      string
		arguments func(t *testing.T) []string
		ready     string // the beginning of its first line, before an address
	}{
		{"a broker with a store inside", func(*testing.T) []string { return []string{"serve", "--memory", "--addr", "127.0.0.1:0"} }, "listening on "},
		{"an attached store", func(t *testing.T) []string {
			return []string{"attach", "--memory", "--probe-messages", "0", "mqtt://" + mosquitto.Start(t, "").Address}
		}, "attached to "},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // for the whole test
			defer cancel()
			cmd := exec.CommandContext(ctx, path, test.arguments(t)...)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			address, _ := start(t, cmd, stdout, test.ready)
			hangUp := func() {
				t.Helper()
				if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
			answers := func(when string) {
				t.Helper()
				client, err := transport.Dial(ctx, address, transport.Options{})
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				defer client.Close()
				if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			log := bufio.NewScanner(stderr)
			if !log.Scan() || !strings.Contains(log.Text(), "the store is in memory") {
				t.Errorf("the log begins with %q", log.Text())
			}
			for range 2 {
				hangUp()
				if !log.Scan() || !strings.Contains(log.Text(), "SIGHUP") || !strings.Contains(log.Text(), "nothing to read again") {
					t.Errorf("the log says %q", log.Text())
				}
				answers("after SIGHUP")
			}
			_, _ = stdout.Close(), stderr.Close()
			hangUp() // it logs that into a broken pipe
			answers("without a reader of its log")
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := await.Result(cmd.Wait); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		})
	}
}
