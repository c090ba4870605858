package journal

import (
	"bytes"
	"context"
)

// SetSpaceConstant makes smaller files be compacted.
func SetSpaceConstant(size int64) { spaceConstant = size }

// Scan returns the records of a file, as Load does.
func Scan(content []byte) (map[string]string, error) {
	return scanBytes(content, true)
}

// Salvage returns the records of a file, as RestoreBackup does.
func Salvage(content []byte) (map[string]string, error) {
	return scanBytes(content, false)
}

func scanBytes(content []byte, complete bool) (map[string]string, error) {
	s, err := openScan(bytes.NewReader(content), int64(len(content)))
	if err == nil && complete {
		err = s.complete()
	}
	if err != nil {
		return nil, err
	}
	records := make(map[string]string)
	err = s.each(context.Background(), func(id, value []byte) error {
		records[string(id)] = string(value)
		return nil
	})
	return records, err
}

// WithoutSync makes the commits of a loaded journal fast and unsafe.
func (f *File) WithoutSync() { f.db.NoSync, f.db.NoGrowSync = true, false }

// LiveBytes returns the size of the live data.
func (f *File) LiveBytes() int64 { return int64(f.totals.bytes) }

// CheckBolt is the check of bbolt.
var CheckBolt = checkBolt

// TakeLock takes the lock of a directory while meanwhile happens, frees it, and reports whether it
// was taken.
func TakeLock(dir string, meanwhile func() error) (bool, error) {
	lock, err := newLock(dir)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	return lock.take(func() (bool, error) {
		locked, err := lock.TryLock()
		return locked, together(err, meanwhile())
	})
}

// Settle waits until no compaction is under way, as the next commits do.
func (f *File) Settle() error { return f.settle() }

// SetBoot changes the name of the present run of the machine, until restore is called.
func SetBoot(name string) (restore func()) {
	before := boot
	boot = func() string { return name }
	return func() { boot = before }
}
