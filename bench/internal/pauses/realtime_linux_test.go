package pauses

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

// The thread sleeps on its processor, with a real-time priority, and is an ordinary one afterwards.
func TestAThreadWithARealTimePriorityStaysOnItsProcessor(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	processor := 0
	for !before.IsSet(processor) {
		processor++
	}
	tested := await.Result(func() error {
		sleep, done, err := realTimeSleeper(0)
		if err != nil {
			return err
		}
		var now unix.CPUSet
		policy, failed := unix.SchedGetAttr(0, 0)
		if err := unix.SchedGetaffinity(0, &now); err != nil || failed != nil || now.Count() != 1 || !now.IsSet(processor) || policy.Policy != unix.SCHED_FIFO {
			t.Errorf("the thread has the policy %+v (%v) and runs on %v (%v)", policy, failed, now, err)
		}
		sleep(time.Millisecond)
		done()
		policy, failed = unix.SchedGetAttr(0, 0)
		if err := unix.SchedGetaffinity(0, &now); err != nil || failed != nil || now != before || policy.Policy != unix.SCHED_NORMAL {
			t.Errorf("afterwards the thread has the policy %+v (%v) and runs on %v (%v)", policy, failed, now, err)
		}
		return nil
	})
	recorder := Start(true)
	defer recorder.Stop()
	switch {
	case tested == nil:
		await.Until(func() bool { return recorder.Snapshot().AwayKnown })
	case os.Geteuid() == 0 || !os.IsPermission(tested):
		t.Errorf("no thread gets a real-time priority: %v", tested)
	default:
		if recorder.Snapshot().AwayKnown {
			t.Error("the recorder says that it knows what it has no right to find out")
		}
	}
}
