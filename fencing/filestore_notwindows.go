//go:build !windows

package fencing

import (
	"errors"
	"os"
)

// Rename renames a file and replaces the file of that name, if any.
func (systemDisk) Rename(from, to string) error { return os.Rename(from, to) }

// SyncDirectory makes the names in a directory durable.
func (systemDisk) SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
