package journal_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// A program that embeds the server opens a journal, gives it to the server in its options, and
// closes it after the server. Here the two calls that the server makes are made by hand. Then there are a backup,
// as of a store that runs, and a new store from it.
func Example() {
	parent, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(parent)
	dir, ctx := filepath.Join(parent, "data"), context.Background()

	file, err := journal.Open(dir, journal.Options{})
	check(err)
	_, err = file.Load(ctx, func(statestore.Record) error { return nil })
	check(err)
	version := hlc.Timestamp{Wall: 1_700_000_000_000, Node: "store"}
	lease := statestore.Item{Kind: statestore.KindKey, Key: "press-7/active", Value: "gateway-a", Version: version}
	check(file.Commit(ctx, []statestore.Group{{lease.Record()}}))
	check(file.Close())
	backup := filepath.Join(parent, "tenure.backup")
	report, err := journal.Backup(ctx, dir, backup)
	check(err)
	fmt.Println("backed up:", report.Keys, "key, online:", report.Online)
	report, err = journal.RestoreBackup(ctx, backup, filepath.Join(parent, "restored"))
	check(err)
	fmt.Println("restored:", report.Keys, "key, new identity:", report.Identity != "")
	// Output:
	// backed up: 1 key, online: false
	// restored: 1 key, new identity: true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
