// Package testprocess runs the tests of a package whose tests start processes. What they start ends with the
// test process, however that ends: by a panic, by -timeout, by Ctrl-C or by SIGKILL.
//
//	func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }
//
// Run starts a watcher, a process in a session of its own, and marks the environment. All that tests start
// inherits the mark, through any number of parents and sessions, so a command needs nothing of its own but
// an environment that is made from os.Environ. When the test process is gone, the watcher kills what has
// the mark. A marked process that is a test process too starts no second watcher.
//
// The watcher finds processes in /proc. On systems other than Linux there is none.
package testprocess

import (
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"testing"
)

// parallel is how many parallel tests of a package may run at once at least, unless -parallel says
// otherwise: they wait for other processes most of the time.
const parallel = 6

// Run runs the tests of a package, and returns the exit code. TestMain calls it once.
func Run(m *testing.M) int {
	running, err := watched()
	if err != nil {
		panic(fmt.Errorf("testprocess: no watcher for the processes of tests: %w", err))
	}
	defer running.Close() // nil where there was a watcher
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(max(parallel, runtime.GOMAXPROCS(0))))
	}
	return m.Run()
}
