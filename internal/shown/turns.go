package shown

import "slices"

// InTurn returns up to limit values: the first one of each queue, then the second one of each, and so
// on.
func InTurn[T any](queues [][]T, limit int) []T {
	var taken []T
	left := slices.Clone(queues)
	for round := 0; len(left) > 0 && len(taken) < limit; round++ {
		left = slices.DeleteFunc(left, func(queue []T) bool { return len(queue) <= round })
		for _, queue := range left[:min(len(left), limit-len(taken))] {
			taken = append(taken, queue[round])
		}
	}
	return taken
}

// Compare orders rows by a condition, for [slices.SortFunc]: false is first.
func Compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
