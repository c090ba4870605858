package command

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

// startVerbose starts tenure serve with --verbose. stop ends it and returns its log.
func startVerbose(t *testing.T, arguments ...string) (stop func() string) {
	t.Helper()
	cmd := exec.Command(build(t), append([]string{"serve", "--memory", "--addr", "127.0.0.1:0", "--verbose"}, arguments...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_, stdout := launch(t, cmd, "listening on ")
	stop = sync.OnceValue(func() string {
		_ = cmd.Process.Signal(os.Interrupt)
		for stdout.Scan() {
		}
		if err := await.Result(cmd.Wait); err != nil {
			t.Errorf("%v; standard error: %s", err, stderr.String())
		}
		return stderr.String()
	})
	t.Cleanup(func() { stop() })
	return stop
}

func TestLimitsAreDerivedFromMaxMemoryAndLoggedOnce(t *testing.T) {
	stop := startVerbose(t, "--max-memory", "512MiB", "--max-session-bytes", "1MiB", "--max-keys", "77", "--max-all-session-bytes=2GiB")
	log := stop()
	lines := regexp.MustCompile(`(?m)^.* msg=limits .*$`).FindAllString(log, -1)
	if len(lines) != 1 {
		t.Fatalf("%d lines about limits in\n%s", len(lines), log)
	}
	for _, want := range []string{" memory=536870912 ", " clients=819 ", " keys=77 ", " key-bytes=134217728 ", " session-bytes=1048576 ",
		" all-session-bytes=2147483648 ", " all-outgoing-bytes=67108864 ", " retain=false "} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("%q is not in %s", want, lines[0])
		}
	}
}

func TestLimitsWithoutEffectAreRefused(t *testing.T) {
	path := build(t)
	for _, test := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"--addr", "127.0.0.1:0", "--max-memory", "1MiB"}, "--max-memory of 1048576 bytes is below 33554432"},
		{[]string{"--max-memory", "512MB"}, "like 536870912, 512MiB or 2GiB"},
		{[]string{"--max-bytes", "-1"}, "cannot be negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-subscriptions", "-1"}, "server: --max-subscriptions -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-clients", "-1"}, "server: --max-clients -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-unauthenticated-per-address", "-1"}, "server: --max-unauthenticated-per-address -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-packet-size", "5"}, "server: --max-packet-size 5 is below 1024"},
		{[]string{"--max-retained", "1"}, "--max-retained limits retained messages; give --retain too"},
		{[]string{"--max-retained-bytes", "1"}, "give --retain too"},
	} {
		out, err := exec.Command(path, append([]string{"serve", "--memory"}, test.arguments...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%q: %v, want %q in\n%s", test.arguments, err, test.want, out)
		}
	}
}

// lockedBuffer is a log that the test reads while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestTheLogReportsUsageAndDropsAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer // timers of virtual time are no order to the race detector
		logger := slog.New(slog.NewTextHandler(&log, nil))
		var mu sync.Mutex
		usage := server.Usage{WaitingBytes: 12345}
		dropped := uint64(0)
		ctx, cancel := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() {
			reportUsage(ctx, logger, func() server.Usage { return usage }, func() server.Stats {
				mu.Lock()
				defer mu.Unlock()
				return server.Stats{DroppedMessages: map[server.MessageDropReason]uint64{server.MessageSessionFull: dropped, server.MessageExpired: 7}}
			})
		})
		check := func(messages, held int, what string) {
			t.Helper()
			synctest.Wait()
			if strings.Count(log.String(), "messages were dropped: session full") != messages ||
				strings.Count(log.String(), "session-bytes=12345") != held || strings.Contains(log.String(), "expired") {
				t.Errorf("%s: %s", what, log.String())
			}
		}
		time.Sleep(119 * time.Second)
		check(0, 1, "nothing was dropped")
		for range 5000 { // each millisecond
			mu.Lock()
			dropped++
			mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		check(2, 2, "5,000 were dropped")
		if !strings.Contains(log.String(), `flag="--max-session-bytes, --max-session-messages"`) {
			t.Errorf("the log does not name the flag: %s", log.String())
		}
		mu.Lock()
		dropped++
		mu.Unlock()
		cancel()
		await.Done(task.Wait)
		check(3, 2, "at the end")
	})
}

func TestEachReasonAndFlagOfDropsExists(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reasons := s.Stats().DroppedMessages
	for reason, flags := range dropFlags {
		if _, ok := reasons[reason]; !ok {
			t.Errorf("the server does not know the reason %q", reason)
		}
		for _, flag := range strings.Split(flags, ", ") {
			if serveCommand(nil).Flags().Lookup(strings.TrimPrefix(flag, "--")) == nil {
				t.Errorf("there is no flag %s", flag)
			}
		}
	}
}

func TestEachFlagOfAnOptionExists(t *testing.T) {
	for pair := range slices.Chunk(optionFlags, 2) {
		option, flag := pair[0], pair[1]
		name, isFlag := strings.CutPrefix(strings.Fields(flag)[0], "--")
		if !isFlag {
			continue // a sentence
		}
		if !slices.ContainsFunc(New("tenure", nil, nil).Commands(), func(cmd *cobra.Command) bool { return cmd.Flags().Lookup(name) != nil }) {
			t.Errorf("%s: there is no flag %s", option, flag)
		}
	}
}
