package main

import (
	"cmp"
	"context"
	"regexp"
	"strings"
)

// walks are the packages whose tests walk through models of a package's code, by its folder.
var walks = map[string][]string{
	"lease":           {"./lease"},
	"statestore":      {"./lease", "./internal/engine"},
	"internal/engine": {"./internal/engine"},
	"election":        {"./election"},
	"cluster":         {"./cluster"},
}

var (
	scopeFailed = regexp.MustCompile(`(?m)^ +--- FAIL: TestExplore\w*/(\S+)`)
	storySteps  = regexp.MustCompile(`a property is broken after (\d+) steps`)
)

// explore breaks a mutant's place and lets the walks alone look for it. It returns the scope that finds it,
// and how many steps the shortest story has there.
func explore(ctx context.Context, source *tree, m *mutant) (v verdict, scope, steps string) {
	path, text, err := source.mutate(m)
	if err != nil {
		return notFound, err.Error(), ""
	}
	for _, tested := range walks[m.folder] {
		output, err := test(ctx, path, text, []string{tested, "-run", "^TestExplore", "-timeout=5m"})
		switch {
		case err == nil:
			continue
		case strings.Contains(output, "panic: test timed out"):
			return survived, "cut off after 5 minutes", ""
		case !failed.MatchString(output):
			return notCompiled, indent(output), ""
		}
		first := func(r *regexp.Regexp) string { return append(r.FindStringSubmatch(output), "", "")[1] }
		scope := strings.ReplaceAll(first(scopeFailed), "_", " ")
		return killed, tested[2:] + ": " + cmp.Or(scope, "a panic"), first(storySteps)
	}
	return survived, "", ""
}
