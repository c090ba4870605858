// Package compiled compiles the programs of this repository for the tests that run them as processes.
package compiled

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// Program is one program. It is compiled once, for all tests of a package; TestMain removes it. Its
// methods are safe for concurrent use, except Remove.
type Program struct {
	// Folder is where its package main is, from the directory of the test.
	Folder string

	once sync.Once
	dir  string // has the program and nothing else
	path string
	err  error
}

// Path returns where the program is. A program that does not compile fails the test.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	path, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Build is Path for a TestMain, which has no test.
func (p *Program) Build() (path string, err error) {
	p.once.Do(func() {
		var folder string
		if folder, p.err = filepath.Abs(p.Folder); p.err != nil {
			return
		}
		if p.dir, p.err = os.MkdirTemp("", "tenure-compiled-"); p.err != nil {
			return
		}
		p.path = filepath.Join(p.dir, filepath.Base(folder))
		if runtime.GOOS == "windows" {
			p.path += ".exe"
		}
		build := exec.Command("go", "build", "-o", p.path, ".")
		build.Dir = folder // its module may be another than the module of the test
		if said, err := build.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("go build in %s: %w\n%s", p.Folder, err, said)
		}
	})
	return p.path, p.err
}

// Remove removes the program, if it was compiled. No process may run it any more.
func (p *Program) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}
