package fencing

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"
)

const (
	errorAccessDenied     = syscall.Errno(5)
	errorSharingViolation = syscall.Errno(32)
	errorLockViolation    = syscall.Errno(33)

	// A program that looks at new files, such as a virus scanner, keeps them from being renamed
	// for a moment.
	renameRetry   = 10 * time.Millisecond
	renameRetries = 200
)

var moveFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("MoveFileExW")

// Rename renames a file and replaces the file of that name, if any. When it returns nil
// the new name is on the disk. Windows cannot sync a directory; it has a flag for this instead,
// which os.Rename does not set.
func (systemDisk) Rename(from, to string) error {
	const replaceExisting, writeThrough = 0x1, 0x8
	oldName, err := syscall.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	newName, err := syscall.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		moved, _, err := moveFileEx.Call(uintptr(unsafe.Pointer(oldName)), uintptr(unsafe.Pointer(newName)),
			replaceExisting|writeThrough)
		if moved != 0 {
			return nil
		}
		passing := errors.Is(err, errorAccessDenied) || errors.Is(err, errorSharingViolation) ||
			errors.Is(err, errorLockViolation)
		if !passing || attempt == renameRetries {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
		time.Sleep(renameRetry)
	}
}

// SyncDirectory does nothing: Rename has made the name durable.
func (systemDisk) SyncDirectory(string) error { return nil }

// lockFile locks a file, which it creates if it does not exist: it opens the file so that
// no other process can open it. The lock ends with the process.
func lockFile(path string) (io.Closer, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	const shareNothing = 0
	handle, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, shareNothing, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL|syscall.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if errors.Is(err, errorSharingViolation) {
		return nil, fmt.Errorf("%w: another store has locked %s; close it, or stop its process", ErrInUse, path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(handle), path), nil
}
