package latency

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/pauses"
)

// vicinity is how far from an event an operation may be that counts as near. The runtime says when a
// collection ended and not when it began, and with small heaps it takes some milliseconds.
const vicinity = 5 * time.Millisecond

// near says what happened near the slow operations.
func near(slow []span, began time.Time, took time.Duration, r *Result) []Near {
	client := spans(r.Client.Collections, began, took)
	server := spans(r.Server.Collections, began, took)
	machine := spans(r.Idle.Stalls, began, took)
	away := spans(r.Idle.Away, began, took)
	all := merge(slices.Concat(client, server, machine, away))
	found := []Near{
		{What: "a collection of the client", Slow: count(slow, client), Chance: covered(client, took)},
		{What: "a collection of the server", Slow: count(slow, server), Chance: covered(server, took)},
		{What: "a processor that was away: a thread with a real-time priority woke late", Slow: count(slow, away), Chance: covered(away, took)},
		{What: "a machine that was busy or away: a thread of normal priority woke late", Slow: count(slow, machine), Chance: covered(machine, took)},
	}
	return append(found, Near{What: "none of these", Slow: len(slow) - count(slow, all), Chance: 1 - covered(all, took)})
}

// spans returns the times near events, merged, in order, and within the load.
func spans(events []pauses.Event, began time.Time, took time.Duration) []span {
	var found []span
	for _, event := range events {
		end := event.End.Sub(began.Round(0)) // on the wall clock: events are of other processes
		s := span{max(0, end-event.Took-vicinity), min(took, end+vicinity)}
		if s.from < s.to {
			found = append(found, s)
		}
	}
	return merge(found)
}

// merge joins spans that overlap.
func merge(found []span) (merged []span) {
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range found {
		if last := len(merged) - 1; last >= 0 && s.from <= merged[last].to {
			merged[last].to = max(merged[last].to, s.to)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// count returns how many of the operations overlap one of the spans, which are merged and in order.
func count(operations, merged []span) (n int) {
	for _, o := range operations {
		// The first span that ends after the operation began is the only one that can be the first to overlap.
		i, _ := slices.BinarySearchFunc(merged, o.from, func(s span, from time.Duration) int {
			if s.to < from {
				return -1
			}
			return 1
		})
		if i < len(merged) && merged[i].from <= o.to {
			n++
		}
	}
	return n
}

// covered returns the share of the time that the spans cover.
func covered(merged []span, took time.Duration) float64 {
	var sum time.Duration
	for _, s := range merged {
		sum += s.to - s.from
	}
	return float64(sum) / float64(max(took, 1))
}
