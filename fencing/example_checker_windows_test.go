package fencing_test

import (
	"os"
	"syscall"
	"unsafe"
)

var moveFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("MoveFileExW")

// renameDurably renames a file and replaces the file of that name, if any. When it returns nil
// the new name is on the disk. Windows cannot sync a directory; it has this flag instead.
func renameDurably(from, to string) error {
	const replaceExisting, writeThrough = 0x1, 0x8
	oldName, err := syscall.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	newName, err := syscall.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	moved, _, err := moveFileEx.Call(uintptr(unsafe.Pointer(oldName)), uintptr(unsafe.Pointer(newName)), replaceExisting|writeThrough)
	if moved == 0 {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
