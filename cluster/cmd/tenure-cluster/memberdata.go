package main

import (
	"fmt"

	"github.com/spf13/cobra"

	tenure "github.com/tenurelock/tenure/cmd/tenure/command"
)

// refuseMemberData makes the commands for the data of a store on one machine say what to do where
// they are given the directory of a member.
func refuseMemberData(root *cobra.Command) {
	position := map[string]int{"check": 0, "backup": 0, "export": 0, "restore": 1} // of the directory in the arguments
	for _, command := range root.Commands() {
		index, ok := position[command.Name()]
		if !ok {
			continue
		}
		run := command.RunE
		command.RunE = func(cmd *cobra.Command, arguments []string) error {
			if tenure.HasMember(arguments[index]) {
				return fmt.Errorf("%s has a member of etcd, and %q is for the data of a store on one machine. The other members have the data too: "+
					"a member that is lost is replaced (tenure-cluster replace), and none is restored. docs/pair.md says under \"Backups\" what protects the data",
					arguments[index], cmd.CommandPath())
			}
			return run(cmd, arguments)
		}
	}
}
