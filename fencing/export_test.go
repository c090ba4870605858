package fencing

const (
	ClaimsAtOnce = claimsAtOnce
	MaxClaims    = maxClaims
)

// Kept returns the number of keys for which the guard has a turn and a claim.
func (g *Guard) Kept() (turns, claims int) {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	g.claims.mu.Lock()
	defer g.claims.mu.Unlock()
	return len(g.turns.keys), len(g.claims.keys)
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
