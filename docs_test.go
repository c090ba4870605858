package tenure_test

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the program of README.md")

// A citation in a comment may be broken over two lines.
var commentBreak = regexp.MustCompile(`\n[\t ]*(?://[\t ]?|#[\t ]?)?`)

var (
	digits       = regexp.MustCompile(`\d+`)
	numberInName = regexp.MustCompile(`(?:Test|Fuzz)Invariants?(\d+(?:And\d+)*)`)
	numberInText = regexp.MustCompile(`[Ii]nvariants? (\d+(?:(?:, | and |, and | to )\d+)*)|docs/invariants\.md (\d+(?:(?:, | and )\d+)*)`)
	testInCode   = regexp.MustCompile(`(?m)((?:^//.*\n)*)^func ((?:Test|Fuzz)\w+)\(`)
)

// invariantsIn returns the numbers of the invariants that a text cites.
func invariantsIn(text string) (numbers []string) {
	for _, pattern := range []*regexp.Regexp{numberInText, numberInName} {
		for _, citation := range pattern.FindAllStringSubmatch(commentBreak.ReplaceAllString(text, " "), -1) {
			numbers = append(numbers, digits.FindAllString(strings.Join(citation[1:], " "), -1)...)
		}
	}
	return numbers
}

func TestDocsHaveEachInvariantThatIsCitedAndTestsForEach(t *testing.T) {
	files := repository(t)
	tested := make(map[string]bool) // by the number of an invariant
	for i, item := range regexp.MustCompile(`(?m)^(\d+)\. `).FindAllStringSubmatch(files["docs/invariants.md"], -1) {
		if tested[item[1]] = false; item[1] != strconv.Itoa(i+1) {
			t.Fatalf("invariant %s is in place %d", item[1], i+1)
		}
	}
	for name, text := range files {
		for _, number := range invariantsIn(text) {
			if _, exists := tested[number]; !exists {
				t.Errorf("%s cites invariant %s, which is not there", name, number)
			}
		}
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, test := range testInCode.FindAllStringSubmatch(text, -1) {
			for _, number := range invariantsIn(test[1] + test[2]) {
				tested[number] = true
			}
		}
	}
	for number, isTested := range tested {
		if !isTested {
			t.Errorf("invariant %s has no test with its number in its name or comment", number)
		}
	}
}

// anchors returns the names by which links reach the headings of a document.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := dropped.ReplaceAllString(strings.ToLower(heading[1]), "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// A link of a document leads to a file, and to a heading if it names one. What other files call a document is one,
// and so is a file that CONTRIBUTING.md names.
func TestDocsLeadToWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)]*))?\)`)
	named := regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md|\bdocs/adr/\d{4}`)
	files := repository(t)
	for name, text := range files {
		if path.Ext(name) == ".md" {
			for _, to := range link.FindAllStringSubmatch(text, -1) {
				target := name
				if to[1] != "" {
					target = path.Join(path.Dir(name), to[1])
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s: %v", name, err)
				} else if to[2] != "" && !anchors(files[target])[to[2]] {
					t.Errorf("%s: %s has no heading #%s", name, target, to[2])
				}
			}
		}
		for _, document := range named.FindAllString(text, -1) {
			if found, err := filepath.Glob(strings.TrimSuffix(document, ".md") + "*"); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there", name, document)
			}
		}
	}
	rows, _, _ := strings.Cut(files["CONTRIBUTING.md"], "\n## Test\n")
	for _, name := range regexp.MustCompile("`([a-z][\\w-]*/[\\w./-]*)`").FindAllStringSubmatch(rows, -1) {
		if _, err := os.Stat(name[1]); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
}

func TestDocsShowTheProgramOfTheReadmeAsItIs(t *testing.T) {
	files := repository(t)
	readme := files["README.md"]
	_, program, _ := strings.Cut(files["examples/election/main.go"], "package main\n")
	before, rest, _ := strings.Cut(readme, "```go\n")
	_, after, found := strings.Cut(rest, "```\n")
	want := before + "```go\npackage main\n" + program + "```\n" + after
	if !found || *update && os.WriteFile("README.md", []byte(want), 0o644) != nil {
		t.Fatal("README.md takes no program")
	}
	if readme != want && !*update {
		t.Error("README.md does not show examples/election/main.go: go test . -run TestDocs -update")
	}
}
