// Command release tags a release of all modules of this repository:
//
//	go run ./release v1.2.3
//
// It changes no branch. The commit of a release has the present commit as its parent, and only the
// tags lead to it: v1.2.3, server/v1.2.3, cmd/tenure/v1.2.3 and so on, all of them on one commit. In
// this commit the modules require each other in that version, without replace directives, which "go
// install …@v1.2.3" would refuse. On the trunk the replace directives stay, so that a change and its
// use in another module are one commit.
//
// Before the tags appear in the repository, the packages of each module are found through them, with
// an empty module cache and without the workspace. The command pushes nothing: it says what to push.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("give the version, such as v1.2.3; %d arguments given", len(arguments))
	}
	tags, err := cut(ctx, ".", arguments[0], os.Stderr)
	if err != nil {
		return err
	}
	fmt.Println("# The tags are in this repository. To publish them:")
	fmt.Print("git push --atomic origin")
	for _, tag := range tags {
		fmt.Print(" ", tag)
	}
	fmt.Println()
	fmt.Println("# So that versions of later commits of the trunk sort after the release:")
	fmt.Printf("git merge -s ours -m 'Merge the tag of %s' %s\n", arguments[0], arguments[0])
	return nil
}
