package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

type verdict string

const (
	found       verdict = "found"
	notFound    verdict = "NOT FOUND"
	noTest      verdict = "NO TEST"
	notCompiled verdict = "DOES NOT COMPILE"
	killed      verdict = "killed"
	survived    verdict = "SURVIVED"
)

// try resolves a mutant and, unless checkOnly, runs its test. The detail is for a person.
func try(ctx context.Context, source *tree, m *mutant, checkOnly bool) (v verdict, detail string) {
	path, text, err := source.mutate(m)
	if err != nil {
		return notFound, err.Error()
	}
	if ok, err := source.hasTest(m.test[0], m.test[2]); err != nil || !ok {
		return noTest, fmt.Sprintf("no test of %s matches %s", m.test[0], m.test[2])
	}
	if checkOnly {
		return found, ""
	}
	output, err := test(ctx, path, text, m.test)
	switch {
	case err == nil:
		return survived, strings.Join(m.test, " ")
	case didNotCompile.MatchString(output):
		return notCompiled, output
	case !failed.MatchString(output):
		return notCompiled, "no test failed:\n" + output // the go command did
	}
	return killed, ""
}

var (
	didNotCompile = regexp.MustCompile(`(?m)\[(build|setup) failed\]$`)
	// A test that hangs or ends its process has no line with FAIL of its own.
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: |^panic: |^fatal error: |^FAIL\s+\S+\s+[\d.]+s$`)
)

// test runs go test with the text in place of a file. The error is not nil if it fails.
func test(ctx context.Context, path string, text []byte, arguments []string) (output string, err error) {
	folder, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	mutated, overlay := filepath.Join(folder, filepath.Base(path)), filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err := errors.Join(err, os.WriteFile(mutated, text, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	workspace, tested := workspaceOf(arguments[0])
	arguments = append([]string{"test", "-vet=off", "-count=1", "-failfast", "-timeout=60s", tested}, arguments[1:]...)
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = workspace
	// In the environment the overlay also reaches a go build that a test runs.
	command.Env = append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
	out, err := command.CombinedOutput()
	return string(out), err
}

// workspaceOf returns the innermost folder with a go.work that a package is in, and the package as
// that workspace names it. Without one, it is the root of the repository.
func workspaceOf(tested string) (workspace, name string) {
	for workspace = filepath.Clean(tested); workspace != "."; workspace = filepath.Dir(workspace) {
		if _, err := os.Stat(filepath.Join(workspace, "go.work")); err != nil {
			continue
		}
		if name, err := filepath.Rel(workspace, tested); err == nil {
			return workspace, "./" + filepath.ToSlash(name)
		}
	}
	return ".", tested
}
