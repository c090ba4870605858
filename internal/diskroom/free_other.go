//go:build !linux

package diskroom

// Free reports that the free room is unknown.
func Free(string) (free int64, known bool) { return 0, false }
