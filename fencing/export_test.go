package fencing

const (
	ClaimsAtOnce = claimsAtOnce
	MaxClaims    = maxClaims
)

// Kept returns the number of keys for which the guard has a turn and a claim.
func (g *Guard) Kept() (turns, claims int) {
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	return len(g.keys.turns), len(g.keys.claimed)
}

// Disk is what a FileStore needs of a file system.
type Disk = disk

// SystemDisk is the disk of the operating system.
var SystemDisk Disk = systemDisk{}

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
