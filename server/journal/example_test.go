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
// closes it after the server. Here the two calls that the server makes are made by hand.
func Example() {
	parent, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	dir, ctx := filepath.Join(parent, "data"), context.Background()

	for range 2 { // the second time, it is as after a restart
		file, err := journal.Open(dir, journal.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = file.Load(ctx, func(record statestore.Record) error {
			item, err := record.Decode()
			fmt.Println("loaded", item.Kind, item.Key, item.Value)
			return err
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		lease := statestore.Item{Kind: statestore.KindKey, Key: "press-7/active", Value: "gateway-a", Version: hlc.Timestamp{Wall: 1_700_000_000_000, Node: "store"}}
		if err := file.Commit(ctx, []statestore.Group{{lease.Record()}}); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("committed")
		if err := file.Close(); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// committed
	// loaded key press-7/active gateway-a
	// committed
}

// A backup of a store that may be running, and a new store from it.
func ExampleBackup() {
	parent, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	dir, ctx := filepath.Join(parent, "data"), context.Background()
	file, err := journal.Open(dir, journal.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	lease := statestore.Item{Kind: statestore.KindKey, Key: "press-7/active", Value: "gateway-a", Version: hlc.Timestamp{Wall: 1_700_000_000_000, Node: "store"}}
	if err := file.Commit(ctx, []statestore.Group{{lease.Record()}}); err != nil {
		fmt.Println(err)
		return
	}

	backup := filepath.Join(parent, "tenure.backup")
	report, err := journal.Backup(ctx, dir, backup, nil)
	fmt.Println("backed up:", report.Keys, "key, online:", report.Online, err)

	report, err = journal.RestoreBackup(ctx, backup, filepath.Join(parent, "restored"), nil)
	fmt.Println("restored:", report.Keys, "key, new identity:", report.Identity != "", err)
	// Output:
	// backed up: 1 key, online: true <nil>
	// restored: 1 key, new identity: true <nil>
}
