// Command tenure-cluster is the command tenure with etcd inside: serve and attach can share the
// data of a store among several processes, of which one is active (--etcd), and serve can run a
// member of etcd in its own process (--member). A witness is a member alone.
//
// It is a program of its own because etcd makes it twice as large, and so that building tenure
// and its tests does not compile etcd.
package main

import "github.com/tenurelock/tenure/cmd/tenure/command"

func main() {
	root := command.New("tenure-cluster", &replication{member: new(memberFlags)}, new(replication))
	root.AddCommand(witnessCommand(), replaceCommand())
	refuseMemberData(root)
	command.NameFlags(root, optionFlags...)
	command.Main(root)
}
