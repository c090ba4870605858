package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestALineOfCodeIsOneWithAToken(t *testing.T) {
	for text, want := range map[string]int{
		"package p\n":                         1,
		"// Package p.\n\npackage p":          1,
		"package p // why\n\n/* a\nb */\n":    1,
		"package p\n\nvar a = 1 +\n\n\t2\n":   3,
		"package p\n\nvar a = `\n// x\n\n`\n": 5,
		"package p\nvar a = `x\n` + `y\nz`\n": 4,
	} {
		if got := codeLines([]byte(text)); got != want {
			t.Errorf("%q has %d lines, want %d", text, got, want)
		}
	}
}

func TestTheCountIsByAreaAndAgainstItsBudget(t *testing.T) {
	files := make(fstest.MapFS)
	for name, text := range map[string]string{
		"lease/lease.go": `package lease

import "x"

const A, b = 1, 2

type (
	Lease struct {
		x.Embedded
		Name, Owner string
		mu          int
	}
	Conn[T any] interface {
		Do()
		do()
	}
	hidden struct{ Field int }
)

func (l *Lease) Acquire()    {}
func (c Conn[T]) do()        {}
func (h hidden) Do()         {}
func New() *Lease            { return nil }
`,
		"lease/lease_windows.go":        "package lease\n\nfunc New() *Lease { return nil }\n",
		"lease/lease_test.go":           "package lease\n\nfunc TestA() {}\n",
		"lease/README.md":               "three short words",
		"internal/new/a.go":             "package new\n\nfunc A() {}\n",
		"internal/await/a.go":           "package await\n",
		"server/go.mod":                 "module server",
		"server/server.go":              "package server\n\nfunc A() {}\n",
		"server/activity/x/activity.go": "package activity\n",
		"server/walk/main.go":           "package main\n\nfunc A() {}\n",
		"lease/testdata/a.go":           "no Go",
		".hidden/a.go":                  "no Go",
	} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	var out strings.Builder
	if err := count(files, &out); err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]bool)
	for row := range strings.Lines(out.String()) {
		rows[strings.Join(strings.Fields(row), " ")] = true
	}
	for _, want := range []string{
		"lines of product 26 of 29000",
		"transport and the client's internal packages 2 of 4500",
		"lease 21 of 1700",
		"server: broker, access, standby 2 of 4500",
		"server: activity and events 1 of 700",
		"lines of tools 3 of 10000",
		"test support 1 of 2200",
		"lines of tests 2 of 50000",
		"words of documents 3 of 25000",
		"lease 9 of 80", // A, Lease, Embedded, Name, Owner, Conn, Do, Acquire, New
	} {
		if !rows[want] {
			t.Errorf("no row %q in\n%s", want, out.String())
		}
	}
	if rows["server 1"] {
		t.Error("the symbols of another module are counted")
	}
}
