//go:build !windows

package fencing_test

import (
	"errors"
	"os"
	"path/filepath"
)

// renameDurably renames a file and replaces the file of that name, if any. When it returns nil
// the new name is on the disk.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	// The name is a part of the directory: sync that too.
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
