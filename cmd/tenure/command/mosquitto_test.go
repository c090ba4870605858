package command

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// startMosquitto runs the broker mosquitto on a free port until the test ends, with anonymous
// clients and more settings, and returns its address. Where mosquitto is missing the test is
// skipped, or fails if CI is true.
func startMosquitto(t *testing.T, settings string) (address string) {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto") // which not every PATH has
	}
	const missing = "mosquitto is not installed: apt-get install mosquitto"
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatal(missing)
	case err != nil:
		t.Skip("SKIPPED: nothing was tested here. " + missing)
	}
	for range 5 { // a port that was free a moment ago may be taken
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address = free.Addr().String()
		_ = free.Close()
		_, port, _ := net.SplitHostPort(address)
		// As another user, mosquitto could not read the directory of the test.
		config := fmt.Sprintf("user root\nlistener %s 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 0\nmax_queued_messages 10000\n%s", port, settings)
		file := filepath.Join(t.TempDir(), "mosquitto.conf")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		broker := exec.Command(path, "-c", file)
		log, err := broker.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := broker.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = broker.Process.Kill()
			_ = await.Result(broker.Wait)
		})
		giveUp := time.AfterFunc(20*time.Second, func() { _ = broker.Process.Kill() })
		var said strings.Builder
		for lines := bufio.NewScanner(log); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
			if strings.HasSuffix(lines.Text(), " running") {
				giveUp.Stop()
				go func() { _, _ = io.Copy(io.Discard, log) }()
				return address
			}
		}
		giveUp.Stop()
		t.Logf("mosquitto ended:\n%s", said.String())
	}
	t.Fatal("mosquitto does not start")
	return ""
}
