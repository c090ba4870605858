package tenure_test

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the program of README.md")

const (
	protocolDocument   = "docs/protocol.md"
	invariantsDocument = "docs/invariants.md"
)

// A document is the text of a source file, with each comment joined to one line: a citation
// may be broken over two lines.
type document struct{ path, text string }

var commentBreak = regexp.MustCompile(`\n[\t ]*(?://[\t ]?|#[\t ]?)?`)

// isProduct reports whether a directory has what the Makefile has made. It may change while tests run.
func isProduct(name string) bool { return name == "bin" || name == "dist" }

// documents returns all files of the repository that name documents.
func documents(t *testing.T) (found []document) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (isProduct(name) || name != "." && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".ci"):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".txt", ".yaml", ".conf", ".service", ""}, filepath.Ext(name)) {
			return nil
		}
		content, err := os.ReadFile(name)
		if err == nil && !bytes.ContainsRune(content, 0) {
			found = append(found, document{filepath.ToSlash(name), string(content)})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 200 {
		t.Fatalf("only %d files were read", len(found))
	}
	return found
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

var (
	digits       = regexp.MustCompile(`\d+`)
	numberInName = regexp.MustCompile(`(?:Test|Fuzz)Invariants?(\d+(?:And\d+)*)`)
	numberInText = regexp.MustCompile(`[Ii]nvariants? (\d+(?:(?:, | and |, and | to )\d+)*)|docs/invariants\.md (\d+(?:(?:, | and )\d+)*)`)
	testInCode   = regexp.MustCompile(`(?m)((?:^//.*\n)*)^func ((?:Test|Fuzz)\w+)\(`)
)

// invariantsIn returns the numbers of the invariants that a text cites.
func invariantsIn(text string) (numbers []int) {
	for _, pattern := range []*regexp.Regexp{numberInText, numberInName} {
		for _, citation := range pattern.FindAllStringSubmatch(text, -1) {
			for _, number := range digits.FindAllString(strings.Join(citation[1:], " "), -1) {
				n, _ := strconv.Atoi(number)
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}

func TestDocsHaveEachInvariantThatIsCitedAndTestsForEach(t *testing.T) {
	const last = 62
	items := regexp.MustCompile(`(?m)^(\d+)\. `).FindAllStringSubmatch(readDocument(t, invariantsDocument), -1)
	for i, item := range items {
		if item[1] != strconv.Itoa(i+1) {
			t.Fatalf("invariant %s is in place %d of %s", item[1], i+1, invariantsDocument)
		}
	}
	if len(items) != last {
		t.Errorf("%s has %d invariants", invariantsDocument, len(items))
	}
	tested := make(map[int]bool)
	for _, document := range documents(t) {
		for _, number := range invariantsIn(commentBreak.ReplaceAllString(document.text, " ")) {
			if number < 1 || number > last {
				t.Errorf("%s cites invariant %d: %s ends with %d", document.path, number, invariantsDocument, last)
			}
		}
		if !strings.HasSuffix(document.path, "_test.go") {
			continue
		}
		for _, test := range testInCode.FindAllStringSubmatch(document.text, -1) {
			for _, number := range invariantsIn(commentBreak.ReplaceAllString(test[1], " ") + test[2]) {
				tested[number] = true
			}
		}
	}
	for number := 1; number <= last; number++ {
		if !tested[number] {
			t.Errorf("invariant %d has no test with its number in its name or comment", number)
		}
	}
}

func TestDocsHaveEachSectionOfTheProtocolThatIsCited(t *testing.T) {
	sections := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^##+ ([\d.]*\d)\.? `).FindAllStringSubmatch(readDocument(t, protocolDocument), -1) {
		sections[heading[1]] = true
	}
	citation := regexp.MustCompile(`docs/protocol\.md (§[\d.]*\d(?:(?:, | and |, and )§[\d.]*\d)*)`)
	inNames := regexp.MustCompile(`(?:Test|Fuzz)Protocol(\d+)`)
	section := regexp.MustCompile(`[\d.]*\d`)
	own := regexp.MustCompile(`§([\d.]*\d)`)
	cited := 0
	for _, document := range documents(t) {
		text := commentBreak.ReplaceAllString(document.text, " ")
		citations := append(citation.FindAllStringSubmatch(text, -1), inNames.FindAllStringSubmatch(text, -1)...)
		if document.path == protocolDocument {
			citations = own.FindAllStringSubmatch(text, -1)
		}
		for _, c := range citations {
			for _, number := range section.FindAllString(c[1], -1) {
				if cited++; !sections[number] {
					t.Errorf("%s cites section %s of %s, which is not there", document.path, number, protocolDocument)
				}
			}
		}
	}
	if cited < 50 {
		t.Errorf("only %d citations were found", cited)
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

// A link of a document leads to a file, and to a heading if it names one. What other files call a document is one.
func TestDocsLeadToWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)]*))?\)`)
	named := regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md|\bdocs/adr/\d{4}`)
	checked := 0
	for _, document := range documents(t) {
		if path.Ext(document.path) == ".md" {
			for _, to := range link.FindAllStringSubmatch(document.text, -1) {
				checked++
				target := document.path
				if to[1] != "" {
					target = path.Join(path.Dir(document.path), to[1])
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s: %v", document.path, err)
				} else if to[2] != "" && !anchors(readDocument(t, target))[to[2]] {
					t.Errorf("%s: %s has no heading #%s", document.path, target, to[2])
				}
			}
		}
		for _, name := range named.FindAllString(document.text, -1) {
			checked++
			if found, err := filepath.Glob(strings.TrimSuffix(name, ".md") + "*"); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there", document.path, name)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d links were checked", checked)
	}
}

func TestDocsNameFilesThatExistWhereTheySayWhereToLook(t *testing.T) {
	rows, _, _ := strings.Cut(readDocument(t, "CONTRIBUTING.md"), "\n## Test\n")
	names := regexp.MustCompile("`([a-z][\\w-]*/[\\w./-]*)`").FindAllStringSubmatch(rows, -1)
	if len(names) < 20 {
		t.Errorf("CONTRIBUTING.md names only %d files", len(names))
	}
	for _, name := range names {
		if _, err := os.Stat(name[1]); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
}

func TestDocsShowTheProgramOfTheReadmeAsItIs(t *testing.T) {
	readme, source := readDocument(t, "README.md"), readDocument(t, "examples/election/main.go")
	_, program, _ := strings.Cut(source, "package main\n")
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
