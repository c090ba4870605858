//go:build !windows

package fencing_test

import (
	"errors"
	"os"
	"path/filepath"
)

// renameDurably gives a file a name that another may have: when it returns nil the name
// is on the disk.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	// The name is in the directory, which has to reach the disk too.
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
