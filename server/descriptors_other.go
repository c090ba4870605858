//go:build !unix

package server

// descriptors returns 0: there is no limit that could be known.
func descriptors() int { return 0 }

func isOutOfDescriptors(error) bool { return false }
