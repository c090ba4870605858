package journal_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// childMode is the environment variable that makes the test binary a child process.
const childMode = "TENURE_JOURNAL_TEST_CHILD"

// children are what a child process does with a directory. It returns its exit code.
var children = map[string]func(dir string) int{
	"commit":           func(dir string) int { return commitUntilFailure(dir, historyLength) },
	"commit and crash": func(dir string) int { return commitUntilFailure(dir, historyLength/2) },
}

func init() {
	if os.Getenv(childMode) != "" {
		runtime.LockOSThread() // strace counts the calls of each thread
	}
}

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(children[mode](os.Args[1]))
	}
	os.Exit(testprocess.Run(m))
}

// child returns a command that runs this binary as a child process, behind a prefix such as
// strace.
func child(mode, dir string, prefix ...string) *exec.Cmd {
	words := append(prefix, os.Args[0], dir)
	command := exec.Command(words[0], words[1:]...)
	command.Env = append(os.Environ(), childMode+"="+mode)
	return command
}

// historyLength is how many batches commitUntilFailure commits at most.
const historyLength = 120

// historyBatch returns the i-th batch of a history: the same in each process.
func historyBatch(i int) (batch []statestore.Group) {
	random := rand.New(rand.NewPCG(uint64(i), 0))
	for range 1 + random.IntN(4) {
		batch = append(batch, statestore.Group{
			record(fmt.Sprintf("key-%02d", random.IntN(40)), strings.Repeat(fmt.Sprintf("%d.", i), random.IntN(400))),
			record("last", fmt.Sprint(i)),
		})
	}
	if i%5 == 0 {
		batch = append(batch, statestore.Group{record(fmt.Sprintf("key-%02d", random.IntN(40)))})
	}
	if i%20 == 19 { // the file becomes large compared with what is left
		var group statestore.Group
		for key := range 38 {
			group = append(group, record(fmt.Sprintf("key-%02d", key)))
		}
		batch = append(batch, group)
	}
	return batch
}

// historyStates returns the state before the first batch and after each.
func historyStates() []map[string]string {
	states := []map[string]string{{}}
	for i := range historyLength {
		state := maps.Clone(states[i])
		apply(state, historyBatch(i))
		states = append(states, state)
	}
	return states
}

// commitUntilFailure goes on with the history, and writes "ack i" after the i-th commit has returned
// and "failed: reason" for one that fails. It exits with 3 then, and without closing the journal before
// batch end.
func commitUntilFailure(dir string, end int) int {
	journal.SetSpaceConstant(16 << 10)
	file, err := journal.Open(dir, journal.Options{})
	next := 0
	if err == nil {
		_, err = file.Load(context.Background(), func(r statestore.Record) error {
			if string(r.ID) == "last" {
				next, err = strconv.Atoi(string(r.Value))
				next++
			}
			return err
		})
	}
	if err != nil {
		fmt.Println("failed:", err)
		if file != nil {
			_ = file.Close()
		}
		return 3
	}
	if next > 0 {
		fmt.Println("ack", next-1) // a store shows it to its clients
	}
	for i := next; i < historyLength; i++ {
		if i == end {
			os.Exit(0)
		}
		if err := file.Commit(context.Background(), historyBatch(i)); err != nil {
			fmt.Println("failed:", err)
			for range 3 {
				if again := file.Commit(context.Background(), historyBatch(i)); !errors.Is(again, err) {
					fmt.Println("a later commit has error", again)
					return 4
				}
			}
			_ = file.Close() // as the server does
			return 3
		}
		fmt.Println("ack", i)
		if i%20 == 19 {
			_ = file.Settle() // also on a slow machine there are some compactions; the next commit has its error
		}
	}
	if err := file.Close(); err != nil {
		fmt.Println("failed: close:", err)
		return 3
	}
	return 0
}
