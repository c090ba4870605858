package fencing

const ClaimsAtOnce = claimsAtOnce

// Turns returns the number of keys for which the guard has a turn.
func (g *Guard) Turns() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.turns)
}

// Disk is what a FileStore needs of a file system.
type Disk = disk

// OpenFileStoreOn opens a store on a disk, without a lock.
func OpenFileStoreOn(disk Disk, path string) (*FileStore, error) {
	return openFileStore(path, disk, noLock{})
}

type noLock struct{}

func (noLock) Close() error { return nil }

// The content of a store's file.
var (
	ParseRecord  = parseRecord
	AppendRecord = appendRecord
)

const MaxRecord = maxRecord
