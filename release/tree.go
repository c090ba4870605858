package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A tree is a directory of a working tree of git, in which commands run.
type tree struct {
	dir         string
	environment []string // variables beside the environment of the process
}

// in returns a directory of the tree.
func (t tree) in(dir string) tree {
	t.dir = filepath.Join(t.dir, filepath.FromSlash(dir))
	return t
}

// with returns the tree with more variables in the environment of its commands.
func (t tree) with(environment ...string) tree {
	t.environment = append(t.environment[:len(t.environment):len(t.environment)], environment...)
	return t
}

// git runs git, and returns what it writes to standard output.
func (t tree) git(ctx context.Context, arguments ...string) (string, error) {
	return t.run(ctx, "git", arguments...)
}

// goCommand runs the go command without the workspace, and returns what it writes to standard
// output.
func (t tree) goCommand(ctx context.Context, arguments ...string) (string, error) {
	return t.with("GOWORK=off").run(ctx, "go", arguments...)
}

func (t tree) run(ctx context.Context, program string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), t.environment...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String() + stdout.String())
		return "", fmt.Errorf("%s %s in %s: %w: %s", program, strings.Join(arguments, " "), t.dir, errors.Join(err, ctx.Err()), said)
	}
	return stdout.String(), nil
}

// fromTags returns the tree with an environment in which the go command takes the modules of this
// repository from the tags of the repository at dir, and others from the modules that this machine
// has or, where it has not, as before. cache is where it keeps all of them: the machine's own cache
// must not remember a version that perhaps is never published.
func (t tree) fromTags(ctx context.Context, dir, cache string) (tree, error) {
	out, err := t.goCommand(ctx, "env", "GOMODCACHE", "GOPROXY", "GOFLAGS")
	if err != nil {
		return tree{}, err
	}
	lines := strings.Split(out, "\n")
	present := "file://" + filepath.ToSlash(filepath.Join(lines[0], "cache", "download"))
	return t.with(
		"GOMODCACHE="+cache,
		"GOPROXY="+present+","+lines[1],
		"GOPRIVATE="+root+","+root+"/*",                                 // from git, and not from a proxy or the checksum database
		"GOFLAGS="+strings.TrimSpace(lines[2]+" -modcacherw -trimpath"), // with -trimpath, builds from several caches are one
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(dir)+".insteadOf",
		"GIT_CONFIG_VALUE_0=https://"+root,
	), nil
}
