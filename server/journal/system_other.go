//go:build !unix

package journal

import "io/fs"

// noFollow is no flag here. A file is checked before it is opened, and a link is refused then.
const noFollow = 0

// rightsOf returns none: Windows has access control lists in place of mode bits, and a new
// directory inherits the list of the directory above it.
func rightsOf(fs.FileInfo) fs.FileMode { return 0 }

func checkOwner(fs.FileInfo) error { return nil }

// syncDirectory does nothing: Windows does not sync directories. NTFS keeps their changes in
// its own journal, in order.
func syncDirectory(string) error { return nil }
