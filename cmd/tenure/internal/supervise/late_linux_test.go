package supervise

import (
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// A guard that was slow to start does not start the program on an old deadline: it asks for the present one.
func TestAGuardThatComesLateStartsTheProgramWithTheNextRenewal(t *testing.T) {
	for name, renews := range map[string]bool{"the lease was renewed": true, "it is stopped": false} {
		t.Run(name, func(t *testing.T) {
			old := bounds{Stop: now(), Kill: now() + time.Minute}
			g := startTestGuard(t, nil, start{Grace: time.Second, Bounds: old}, "/bin/sh", "-c", "exit 3")
			defer g.kill()
			if r := await.Receive(g.reports); r.Armed != old.Kill {
				t.Fatalf("%+v", r)
			}
			want := Status{Code: -1, Stopped: true}
			if renews {
				latest := now() + time.Hour
				g.send(request{Arm: &bounds{Stop: latest, Kill: latest}})
				if r := await.Receive(g.reports); r.Armed != latest {
					t.Fatalf("%+v", r)
				}
				if r := await.Receive(g.reports); r.Made == 0 {
					t.Fatalf("%+v", r)
				}
				want = Status{Code: 3}
			} else {
				g.send(request{Stop: &stop{Signal: terminateSignal, Kill: now()}})
			}
			if r := await.Receive(g.reports); r.Ended == nil || *r.Ended != want {
				t.Errorf("%+v, want %+v", r.Ended, want)
			}
			if r := await.Receive(g.reports); !r.Gone {
				t.Errorf("%+v", r)
			}
		})
	}
}
