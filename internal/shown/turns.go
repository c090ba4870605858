package shown

// Queue returns its next value, and false after the last one.
type Queue[T any] func() (T, bool)

// InTurn returns the first value of each of n queues, then the second one of each, and so on. It opens a queue,
// and takes a value from it, only when the turn of that value has come: a few values cost little, however many
// there are.
func InTurn[T any](n int, open func(i int) Queue[T]) Queue[T] {
	opened := 0
	var again []Queue[T] // in the order of their next turns
	return func() (value T, ok bool) {
		for !ok && (opened < n || len(again) > 0) {
			var queue Queue[T]
			if opened < n {
				queue = open(opened)
				opened++
			} else {
				queue, again = again[0], again[1:]
			}
			if value, ok = queue(); ok {
				again = append(again, queue)
			}
		}
		return value, ok
	}
}

// Of returns the values of a slice.
func Of[T any](values []T) Queue[T] {
	return func() (value T, ok bool) {
		if len(values) == 0 {
			return value, false
		}
		value, values = values[0], values[1:]
		return value, true
	}
}

// Take returns up to limit values of a queue.
func (q Queue[T]) Take(limit int) (taken []T) {
	for len(taken) < limit {
		value, ok := q()
		if !ok {
			break
		}
		taken = append(taken, value)
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
