package supervise

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

// A guard that was slow does not start the program on an old deadline, nor after a request to stop that has come
// behind the deadline.
func TestAGuardStartsTheProgramWithADeadlineThatLastsAndStandsAlone(t *testing.T) {
	old, latest := &bounds{Stop: now(), Kill: now() + time.Hour}, &bounds{Stop: now() + time.Hour, Kill: now() + time.Hour}
	ends := &stop{Signal: terminateSignal, Kill: now()}
	for name, test := range map[string]struct {
		requests []request
		want     string
		status   Status
	}{
		"the lease lasts":             {[]request{{Arm: latest}}, "armed armed made ended", Status{Code: 3}},
		"the lease was renewed":       {[]request{{Arm: old}, {Arm: latest}}, "armed armed armed made ended", Status{Code: 3}},
		"a signal behind it":          {[]request{{Arm: latest}, {Signal: continueSignal}}, "armed armed made ended", Status{Code: 3}},
		"it is stopped":               {[]request{{Stop: ends}}, "armed ended", Status{Code: -1, Stopped: true}},
		"it is stopped after a while": {[]request{{Arm: old}, {Stop: ends}}, "armed armed ended", Status{Code: -1, Stopped: true}},
		"it is stopped behind it":     {[]request{{Arm: latest}, {Stop: ends}}, "armed armed ended", Status{Code: -1, Stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := startWaitingGuard(t, nil, nil, start{Grace: time.Second, Kill: old.Kill}, "/bin/sh", "-c", "exit 3")
			defer g.kill()
			var text []byte // at once, as a guard finds it that stood still
			for _, r := range test.requests {
				line, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				text = append(append(text, line...), '\n')
			}
			if _, err := g.socket.Write(text); err != nil {
				t.Fatal(err)
			}
			if ended := checkReports(t, g, strings.Fields(test.want)...).Ended; *ended != test.status {
				t.Errorf("%+v, want %+v", *ended, test.status)
			}
			checkReports(t, g, "gone")
		})
	}
}

// With --instant: the connection has ended, and the lease with it, before the guard gets to its work.
func TestAGuardWhoseConnectionIsLostDoesNotStartTheProgram(t *testing.T) {
	t.Parallel()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := os.NewFile(uintptr(ends[0]), "connection")
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err := errors.Join(err, unix.Close(ends[1])); err != nil {
		t.Fatal(err)
	}
	latest := now() + time.Hour
	for range 10 {
		g := startWaitingGuard(t, nil, raw, start{Grace: time.Second, Kill: latest}, "/bin/sh", "-c", "exit 3")
		g.send(request{Arm: &bounds{Stop: latest, Kill: latest}})
		for r := (report{}); !r.Gone; { // it may see the loss before Arm
			if r = await.Receive(g.reports); r.Made != 0 {
				t.Error("the program was started")
			}
		}
		g.kill()
	}
}
