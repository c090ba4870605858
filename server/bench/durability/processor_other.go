//go:build !unix

package durability

import "time"

// processorTime returns 0: only on Unix does this package know what the process has used.
func processorTime() time.Duration { return 0 }
