//go:build unix

// Command failover shows a replicated store that fails over, under a pair of nodes that goes on.
//
//	cd cluster && go run ./failover
//
// It runs three members of etcd, three processes of a store, and the pair of examples/failover:
// two nodes that campaign for a lease, of which the active one counts up a protected key. Then it
// kills the active store; freezes the next one, and wakes it when another answers; cuts the next
// one off from etcd; and stops the next one. Each time another store takes over, and the node that
// leads keeps its lease. At last it freezes the node that leads and kills the active store
// together: the other node leads, and the store that took over refuses the late write of the first.
//
// At the end it prints for how long each fault left writes without an answer, and what it
// checked: above all, that no write of a node that no longer led was accepted, and that no write
// was lost that a store had answered. Its exit status is 1 if a check failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	ttl     time.Duration // of the lease
	etcdTTL time.Duration
	verbose bool

	// Of the processes that the program starts.
	role    string
	name    string
	address string // of a store
	stores  string // addresses for a node
	etcd    string // endpoints for a store
}

const (
	roleStore = "store"
	roleNode  = "node"
)

func main() {
	var s settings
	flag.DurationVar(&s.ttl, "ttl", 15*time.Second, "how long the lease of a dead node lasts; longer than a store takes to take over")
	flag.DurationVar(&s.etcdTTL, "etcd-ttl", 4*time.Second, "how long after the unclean end of the active store another one takes over")
	flag.BoolVar(&s.verbose, "verbose", false, "let stores and nodes log to standard error")
	flag.StringVar(&s.role, "role", "", "run as a store or a node (the program starts itself so)")
	flag.StringVar(&s.name, "name", "", "name of the store or node")
	flag.StringVar(&s.address, "address", "", "where a store listens")
	flag.StringVar(&s.stores, "stores", "", "addresses of the stores")
	flag.StringVar(&s.etcd, "etcd", "", "addresses of etcd")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		stop()
		os.Exit(1)
	}
}

var errChecksFailed = errors.New("a check failed")

func run(ctx context.Context, s settings) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	}
	switch s.role {
	case roleStore:
		return runStore(ctx, s, os.Stdin, os.Stdout)
	case roleNode:
		return runNode(ctx, s)
	}
	result, err := direct(ctx, s, os.Stdout)
	if err != nil {
		return err
	}
	if err := result.write(os.Stdout); err != nil {
		return err
	}
	if !result.checks.OK() {
		return errChecksFailed
	}
	return nil
}
