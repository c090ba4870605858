//go:build !linux

package member

// freeOn reports that the free room is unknown.
func freeOn(string) (free int64, known bool) { return 0, false }
