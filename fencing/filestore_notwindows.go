//go:build !windows

package fencing

import (
	"errors"
	"os"
)

// replaceFile renames a file and replaces the file of that name, if any.
func replaceFile(from, to string) error { return os.Rename(from, to) }

// syncDirectory makes the names in a directory durable.
func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
