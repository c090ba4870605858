package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/command"
)

func TestTheCommandTenureSaysWhichProgramHasTheFlagsOfReplication(t *testing.T) {
	for name, replication := range map[string]command.Replication{"serve": &replication{member: new(memberFlags)}, "attach": new(replication)} {
		flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
		replication.Register(flags)
		flags.VisitAll(func(f *pflag.Flag) {
			tenure := command.New("tenure", nil, nil)
			tenure.SetErr(io.Discard)
			tenure.SetArgs([]string{name, "--" + f.Name, "x"})
			if err := tenure.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "tenure-cluster has it") {
				t.Errorf("tenure %s --%s: %v", name, f.Name, err)
			}
		})
	}
}

// A machine may have this program only.
func TestHelpNamesThisProgram(t *testing.T) {
	root := command.New("tenure-cluster", &replication{member: new(memberFlags)}, new(replication))
	for _, cmd := range root.Commands() {
		help := cmd.Long + "\n" + cmd.Example + "\n" + cmd.Flags().FlagUsages()
		for _, named := range root.Commands() {
			if other := "tenure " + named.Name(); strings.Contains(help, other) {
				t.Errorf("the help of %s has %q:\n%s", cmd.Name(), other, help)
			}
		}
	}
}
