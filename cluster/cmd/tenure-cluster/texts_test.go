package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// A machine may have this program only.
func TestHelpNamesThisProgram(t *testing.T) {
	root := program().Command()
	for _, cmd := range root.Commands() {
		help := cmd.Long + "\n" + cmd.Example + "\n" + cmd.Flags().FlagUsages()
		for _, named := range root.Commands() {
			if other := "tenure " + named.Name(); strings.Contains(help, other) {
				t.Errorf("the help of %s has %q:\n%s", cmd.Name(), other, help)
			}
		}
	}
}

// What package cluster would refuse only once etcd answers is refused at once.
func TestTimesThatMakeNoSenseAreRefusedAtOnce(t *testing.T) {
	member := []string{"--member", "a", "--cluster", "a=http://127.0.0.1:1"}
	etcd := []string{"--etcd", "http://127.0.0.1:1"}
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{append(member, "--standing", "1ms"), "--standing 1ms must be from 100ms to 30s"},
		{append(etcd, "--standing", "31s"), "--standing 31s must be from 100ms to 30s"},
		{append(etcd, "--standing", "-1s"), "--standing -1s must be from 100ms to 30s"},
		{append(etcd, "--etcd-ttl", "1500ms"), "--etcd-ttl 1.5s must be whole seconds, from 2s to 1m0s"},
		{append(member, "--standing", "100ms"), ""},
		{append(etcd, "--standing", "0"), ""},
	} {
		r := &replication{member: new(memberFlags)}
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		r.registerFlags(flags)
		if err := flags.Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Chosen(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.flags, err, test.want)
		}
	}
}
