package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// root is the path of the root module. The paths of the others begin with it.
const root = "github.com/tenurelock/tenure"

// unreleased are the directories of modules that get no tag: tools of this repository, which read
// its files.
var unreleased = []string{"bench", "cmd/tenure/internal/admin/browsertest", "internal/mutants", "release"}

// A module is one of this repository.
type module struct {
	dir      string   // with slashes, below the top of the repository; "." is the root
	requires []string // the directories of the modules of this repository that it requires
	replaces []string // the paths that it replaces
}

// path returns the module's path.
func (m *module) path() string { return path.Join(root, m.dir) }

// tag returns the module's tag for a version: "server/v1.2.3".
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// modules returns the modules that get a tag, each after those that it requires.
func modules(ctx context.Context, tree tree) ([]module, error) {
	files, err := tree.git(ctx, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var all []module
	for file := range strings.Lines(files) {
		dir := path.Dir(strings.TrimSpace(file))
		if slices.Contains(unreleased, dir) {
			continue
		}
		m, err := readModule(ctx, tree, dir)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return sorted(all)
}

// readModule reads the go.mod in a directory.
func readModule(ctx context.Context, tree tree, dir string) (module, error) {
	out, err := tree.in(dir).goCommand(ctx, "mod", "edit", "-json")
	if err != nil {
		return module{}, err
	}
	var file struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
		Replace []struct {
			Old struct{ Path string }
			New struct{ Path string }
		}
	}
	if err := json.Unmarshal([]byte(out), &file); err != nil {
		return module{}, fmt.Errorf("%s/go.mod: %w", dir, err)
	}
	m := module{dir: dir}
	if file.Module.Path != m.path() {
		return module{}, fmt.Errorf("%s/go.mod is of the module %s; its path must be %s, or its tag would not be found", dir, file.Module.Path, m.path())
	}
	for _, require := range file.Require {
		if below, ok := inRepository(require.Path); ok {
			m.requires = append(m.requires, below)
		}
	}
	for _, replace := range file.Replace {
		if _, ok := inRepository(replace.Old.Path); !ok {
			return module{}, fmt.Errorf("%s/go.mod replaces %s by %s, and a released module must not: require a version of it that works", dir, replace.Old.Path, replace.New.Path)
		}
		m.replaces = append(m.replaces, replace.Old.Path)
	}
	return m, nil
}

// inRepository returns the directory of a module if it is one of this repository.
func inRepository(modulePath string) (dir string, ok bool) {
	if modulePath == root {
		return ".", true
	}
	return strings.CutPrefix(modulePath, root+"/")
}

// sorted returns modules with each after those that it requires, and otherwise by directory.
func sorted(all []module) ([]module, error) {
	slices.SortFunc(all, func(a, b module) int { return cmp.Compare(a.dir, b.dir) })
	var done []module
	for len(all) > 0 {
		next := slices.IndexFunc(all, func(m module) bool {
			return !slices.ContainsFunc(m.requires, func(dir string) bool {
				return !slices.ContainsFunc(done, func(d module) bool { return d.dir == dir })
			})
		})
		if next < 0 {
			return nil, fmt.Errorf("%s requires %s, which is not released, or requires it too", all[0].path(), strings.Join(all[0].requires, ", "))
		}
		done = append(done, all[next])
		all = slices.Delete(all, next, next+1)
	}
	return done, nil
}
