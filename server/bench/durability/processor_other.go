//go:build !unix

package durability

import "time"

// processorTime would be what this process has used so far; only Unix says so here.
func processorTime() time.Duration { return 0 }
