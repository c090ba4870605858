package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// versions are the versions that may be released: a path of a module of version 2 and later ends
// with /v2, which no path here does.
var versions = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// cut makes the commit and the tags of a release from the present commit of the repository at dir, and
// returns the tags. Nothing changes in the repository before all of them are right. Progress goes to
// log.
func cut(ctx context.Context, dir, version string, log io.Writer) (tags []string, err error) {
	if !versions.MatchString(version) {
		return nil, fmt.Errorf("%q is not a version such as v1.2.3 or v1.2.3-rc.1; from v2 on, each module's path needs to end with /v2", version)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	repository := tree{dir: dir}
	if err := check(ctx, repository, version); err != nil {
		return nil, err
	}
	temporary, err := os.MkdirTemp("", "tenure-release-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	clone := tree{dir: filepath.Join(temporary, "clone")}
	if _, err := repository.git(ctx, "clone", "--quiet", "--no-tags", "--shared", dir, clone.dir); err != nil {
		return nil, err
	}
	all, err := modules(ctx, clone)
	if err != nil {
		return nil, err
	}
	if err := commit(ctx, clone, all, version, filepath.Join(temporary, "drafts"), log); err != nil {
		return nil, err
	}
	if err := verify(ctx, clone, all, version, filepath.Join(temporary, "verified"), log); err != nil {
		return nil, err
	}
	fetch := []string{"fetch", "--quiet", "--no-tags", clone.dir}
	for _, m := range all {
		tags = append(tags, m.tag(version))
		fetch = append(fetch, "refs/tags/"+m.tag(version)+":refs/tags/"+m.tag(version))
	}
	if _, err := repository.git(ctx, append(fetch, "--atomic")...); err != nil {
		return nil, err
	}
	return tags, nil
}

// check refuses a repository whose present commit cannot be released.
func check(ctx context.Context, repository tree, version string) error {
	changed, err := repository.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("commit or remove first:\n%s", changed)
	}
	present, err := repository.git(ctx, "tag", "--list", version, "*/"+version)
	if err != nil {
		return err
	}
	if present != "" {
		return fmt.Errorf("there are tags of %s already. A published version cannot change: take the next one. If these tags were never pushed: git tag -d %s", version, strings.Join(strings.Fields(present), " "))
	}
	changes, err := os.ReadFile(filepath.Join(repository.dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if strings.Contains(version, "-") {
		return nil // a version before a release has no section of its own
	}
	section := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(strings.TrimPrefix(version, "v")) + ` - \d{4}-\d\d-\d\d$`)
	if !section.Match(changes) {
		return fmt.Errorf("CHANGELOG.md has no section \"## %s - YYYY-MM-DD\": give the section Unreleased this name, and commit", strings.TrimPrefix(version, "v"))
	}
	return nil
}

// commit makes the commit of a release, and its tags, in a clone. cache is a directory for modules.
//
// The go.sum of a module has the hashes of the modules that it requires, so these are committed and
// tagged first, as the go command reads them from there. What a module contains does not depend on the
// modules that require it. So its hash is still right when all of the commits have become one.
func commit(ctx context.Context, clone tree, all []module, version, cache string, log io.Writer) error {
	base, err := clone.git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	drafts, err := clone.fromTags(ctx, clone.dir, cache)
	if err != nil {
		return err
	}
	for _, m := range all {
		fmt.Fprintf(log, "%s@%s\n", m.path(), version)
		if err := require(ctx, drafts.in(m.dir), m, version); err != nil {
			return err
		}
		if err := commitAll(ctx, clone, m.tag(version)); err != nil {
			return err
		}
		if _, err := clone.git(ctx, "tag", m.tag(version)); err != nil {
			return err
		}
	}
	if _, err := clone.git(ctx, "reset", "--quiet", "--soft", strings.TrimSpace(base)); err != nil {
		return err
	}
	if err := commitAll(ctx, clone, "Release "+version); err != nil {
		return err
	}
	for _, m := range all {
		if _, err := clone.git(ctx, "tag", "--force", "--annotate", "--message", m.path()+" "+version, m.tag(version)); err != nil {
			return err
		}
	}
	return nil
}

func commitAll(ctx context.Context, clone tree, message string) error {
	_, err := clone.git(ctx, "commit", "--quiet", "--all", "--allow-empty", "--message", message)
	return err
}

// require makes a module require the released versions of the modules that it replaces now.
func require(ctx context.Context, tree tree, m module, version string) error {
	edit := []string{"mod", "edit"}
	for _, replaced := range m.replaces {
		edit = append(edit, "-dropreplace="+replaced)
	}
	for _, required := range m.requires {
		other := module{dir: required}
		edit = append(edit, "-require="+other.path()+"@"+version)
	}
	if len(edit) > 2 {
		if _, err := tree.goCommand(ctx, edit...); err != nil {
			return err
		}
	}
	if _, err := tree.goCommand(ctx, "mod", "tidy"); err != nil {
		return err
	}
	// Comments about the directives stay behind when these are dropped.
	return dropCommentsOfReplace(filepath.Join(tree.dir, "go.mod"))
}

// dropCommentsOfReplace removes from a go.mod the comments that say why it has replace directives.
// "go mod edit" leaves them at the end, without the directives.
func dropCommentsOfReplace(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	kept := regexp.MustCompile(`(?m)^//[^\n]*\n(//[^\n]*\n)*\n*\z`).ReplaceAll(content, nil)
	return os.WriteFile(file, append([]byte(strings.TrimRight(string(kept), "\n")), '\n'), 0o644)
}

// verify checks the tags as their users will find them: with an empty cache, and without the
// workspace.
func verify(ctx context.Context, clone tree, all []module, version, cache string, log io.Writer) error {
	// A working tree of its own: the tags must not depend on what is in the clone.
	tagged := tree{dir: clone.dir + "-tagged"}
	if _, err := clone.git(ctx, "clone", "--quiet", "--shared", "--branch", version, clone.dir, tagged.dir); err != nil {
		return err
	}
	tagged, err := tagged.fromTags(ctx, clone.dir, cache)
	if err != nil {
		return err
	}
	for _, m := range all {
		fmt.Fprintf(log, "verify %s\n", m.tag(version))
		released, err := readModule(ctx, tagged, m.dir)
		if err != nil {
			return err
		}
		if len(released.replaces) > 0 {
			return fmt.Errorf("%s still replaces %s", m.tag(version), strings.Join(released.replaces, ", "))
		}
		// It loads all packages, with their tests, and checks the hashes. The code is the trunk's,
		// where the tests run: to compile it again here would take minutes.
		if _, err := tagged.in(m.dir).goCommand(ctx, "mod", "tidy", "-diff"); err != nil {
			return err
		}
	}
	return nil
}
