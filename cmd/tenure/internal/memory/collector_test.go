package memory

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/testprocess"
)

// Configure runs in a process of its own: what it sets belongs to a process, at its start.
const childVariable = "TENURE_TEST_COLLECTOR"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		allocateInChild()
		os.Exit(0)
	}
	os.Exit(testprocess.Run(m))
}

// garbage keeps the compiler from leaving allocations out.
var garbage []byte

// allocateInChild configures this process, makes 24 MiB of garbage, and prints whether the collector ran
// meanwhile, and what takes more memory than it should.
func allocateInChild() {
	pages, counted := residentPages(), resident()
	Configure(0)
	Configure(0) // a server that stood by
	if grown := residentPages() - pages; grown > 8*mebibyte {
		fmt.Println("the system has given", grown, "bytes for a ballast")
	}
	if grown := resident() - counted; grown > 8*mebibyte {
		fmt.Println("a Release sees", grown, "bytes more")
	}
	runtime.GC()
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	began := stats.NumGC
	for range 24 << 10 {
		garbage = make([]byte, 1<<10)
	}
	debug.ReadGCStats(&stats)
	if stats.NumGC == began {
		fmt.Println("never")
	} else {
		fmt.Println("often")
	}
}

func TestASmallHeapIsCollectedSeldomUnlessTheEnvironmentSaysOtherwise(t *testing.T) {
	for setting, want := range map[string]string{"": "never", "GOGC=100": "often", "GOMEMLIMIT=1GiB": "often"} {
		t.Run(setting, func(t *testing.T) {
			child := exec.Command(os.Args[0])
			for _, variable := range os.Environ() {
				if name, _, _ := strings.Cut(variable, "="); name != "GOGC" && name != "GOMEMLIMIT" {
					child.Env = append(child.Env, variable)
				}
			}
			child.Env = append(child.Env, childVariable+"=1")
			if setting != "" {
				child.Env = append(child.Env, setting)
			}
			out, err := child.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				t.Errorf("the collector ran %s (%v), want %s", got, err, want)
			}
		})
	}
}

func TestTheSpareIsBoundedByTheLimit(t *testing.T) {
	for limit, want := range map[int64]int64{
		0: 32 << 20, 32 << 20: 4 << 20, 64 << 20: 8 << 20, 256 << 20: 32 << 20, 1 << 40: 32 << 20, math.MaxInt64: 32 << 20,
	} {
		if got := spareBelow(limit); got != want {
			t.Errorf("with a limit of %d the spare is %d, want %d", limit, got, want)
		}
	}
}

func TestTheLimitOfTheCollectorLeavesRoomAboveTheLimit(t *testing.T) {
	for _, test := range []struct{ limit, ballast, want int64 }{
		{256 << 20, 32 << 20, (256 + 64 + 32) << 20},
		{64 << 20, 0, (64 + 16) << 20},
		{math.MaxInt64, 32 << 20, math.MaxInt64},
		{math.MaxInt64 - (16 << 20), 32 << 20, math.MaxInt64},
	} {
		if got := collectorLimit(test.limit, test.ballast); got != test.want {
			t.Errorf("with a limit of %d and a ballast of %d it is %d, want %d", test.limit, test.ballast, got, test.want)
		}
	}
}
