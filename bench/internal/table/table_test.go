package table_test

import (
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/table"
)

func TestAReportHasAShortAndALongTableForEachOperation(t *testing.T) {
	report := table.Report{
		Reference: "ours",
		About:     [][2]string{{"ours", "In memory."}, {"theirs", "On disk."}},
		Rows: []table.Row{
			{Peer: "ours", Operation: "pair", InFlight: 1, Time: 45_900, P50: 44_000, P99: 120_000, ClientTime: 9_990, ServerTime: 0, Allocations: 34.04, Ratio: 1},
			{Peer: "theirs", Operation: "pair", InFlight: 1, Time: 928 * time.Microsecond, P50: 900 * time.Microsecond, P99: 5 * time.Millisecond, ClientTime: 100_000, ServerTime: 7_000, Allocations: 289, Ratio: 20.217},
			{Peer: "ours", Operation: "pair", InFlight: 16, Time: 1_434, P50: 2_000, P99: 3_000, ClientTime: 1_000, ServerTime: 1_000, Ratio: 1},
			{Peer: "theirs", Operation: "pair", InFlight: 16, Time: 2_868, P50: 2_000, P99: 3_000, ClientTime: 1_000, ServerTime: 1_000, Ratio: 2, Note: "one turn was late"},
			{Peer: "ours", Operation: "renewal", InFlight: 1, Time: 1_000, P50: 1_000, P99: 1_000, ClientTime: 1_000, ServerTime: 1_000, Ratio: 1},
			{Peer: "theirs", Operation: "renewal", InFlight: 1, Lacks: "it has none"},
			{Peer: "ours", Operation: "renewal", InFlight: 16, Time: 1_000, P50: 1_000, P99: 1_000, ClientTime: 1_000, ServerTime: 1_000, Ratio: 1},
			{Peer: "theirs", Operation: "renewal", InFlight: 16, Lacks: "it has none"},
		},
	}
	const want = `### Pair

| µs (ratio to ours), in flight | 1 | 16 |
|---|--:|--:|
| ours | 45.9 (1.00) | 1.43 (1.00) |
| theirs | 928 (20.22) | 2.87 (2.00) |

- theirs: one turn was late.

| peer | in flight | p50 µs | p99 µs | allocations | client CPU µs | server CPU µs |
|---|--:|--:|--:|--:|--:|--:|
| ours | 1 | 44.0 | 120 | 34.0 | 9.99 | n/a |
| ours | 16 | 2.00 | 3.00 | 0.0 | 1.00 | 1.00 |
| theirs | 1 | 900 | 5000 | 289.0 | 100 | 7.00 |
| theirs | 16 | 2.00 | 3.00 | 0.0 | 1.00 | 1.00 |

### Renewal

| µs (ratio to ours), in flight | 1 | 16 |
|---|--:|--:|
| ours | 1.00 (1.00) | 1.00 (1.00) |
| theirs | n/a | n/a |

- n/a for theirs: it has none.

| peer | in flight | p50 µs | p99 µs | allocations | client CPU µs | server CPU µs |
|---|--:|--:|--:|--:|--:|--:|
| ours | 1 | 1.00 | 1.00 | 0.0 | 1.00 | 1.00 |
| ours | 16 | 1.00 | 1.00 | 0.0 | 1.00 | 1.00 |

### The peers

| peer | how it is configured |
|---|---|
| ours | In memory. |
| theirs | On disk. |
`
	if got := report.String(); got != want {
		t.Errorf("the report is\n%s\nwant\n%s", got, want)
	}
}
