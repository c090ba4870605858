// Package etcdtest has what tests need to run members of etcd on this machine, with TLS or without.
package etcdtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/cluster/member"
)

// Members returns the options of three members of one cluster, called m0, m1 and m2, each with a
// ClientURL and a directory of its own. cleanup is given what removes the directories: t.Cleanup,
// or a function that keeps it for later.
func Members(t testing.TB, cleanup func(func())) (options [3]member.Options) {
	t.Helper()
	dir := Dir(t, cleanup)
	free := Addresses(t, 2*len(options))
	var peers []string
	for i := range options {
		options[i] = member.Options{Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(dir, fmt.Sprint(i)),
			ClientURL: "http://" + free[len(options)+i]}
		peers = append(peers, options[i].Name+"=http://"+free[i])
	}
	for i := range options {
		options[i].Cluster = strings.Join(peers, ",")
	}
	return options
}

// Addresses returns addresses of this machine, of the form 127.0.0.1:port, on which no process
// listens now.
func Addresses(t testing.TB, n int) (free []string) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		free = append(free, listener.Addr().String())
	}
	return free
}

// Dir returns a new directory for members, and gives cleanup a function that removes it. The
// directory has a shorter name than t.TempDir returns, because names of sockets must be short.
func Dir(t testing.TB, cleanup func(func())) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
