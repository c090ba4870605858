//go:build unix

package command

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

func TestAttachWithWaitIsASpareAgainAfterAnotherStoreTookItsPlace(t *testing.T) {
	path, url := build(t), "mqtt://"+mosquitto.Start(t, "").Address
	arguments := []string{"attach", "--memory", url, "--wait", "--hold-off", "1ms", "--probe-messages", "0"}
	first, second := exec.Command(path, arguments...), exec.Command(path, arguments...)
	_, linesOfFirst := launch(t, first, "attached to "+url)
	_, linesOfSecond := launch(t, second, "standing by on "+url)
	client, err := transport.Dial(t.Context(), url, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Set(t.Context(), "k", []byte("of the first"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
	// The broker gives up the first store after a while, and the second answers.
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	mustSay(t, linesOfSecond, "attached to "+url)
	if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Exists {
		t.Errorf("the second store has %q, %v", entry.Value, err)
	}
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	mustSay(t, linesOfFirst, "standing by on "+url)
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	mustSay(t, linesOfFirst, "attached to "+url)
	if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Exists {
		t.Errorf("the first store has its old data: %q, %v", entry.Value, err)
	}
}

// mustSay fails unless the next line of a command begins with want.
func mustSay(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	if !await.Result(lines.Scan) || !strings.HasPrefix(lines.Text(), want) {
		t.Fatalf("it said %q, want %q", lines.Text(), want)
	}
}
