package activity

import (
	"cmp"
	"slices"
	"strings"
)

// A State as JSON is bounded in bytes too, because clients choose how long names are, and how many of
// their characters must be escaped. A thousand leases with names of usual lengths fit.
const (
	shownLeaseBytes, shownClientBytes   = 2048 << 10, 512 << 10
	shownTimelineBytes, shownStaleBytes = 256 << 10, 64 << 10
	// shownRowBytes bounds one lease: beyond that, waiting clients are left out.
	shownRowBytes = 4 << 10

	// These are the most bytes of rows as JSON, without the texts that clients choose.
	leaseBytes, waiterBytes, changeBytes, clientBytes, staleBytes = 560, 170, 310, 440, 260
)

// MaxJSON bounds a State as JSON, in bytes, without what the caller adds to it.
const MaxJSON = shownLeaseBytes + shownClientBytes + shownTimelineBytes + shownStaleBytes + 8<<10

// finish makes a state printable and leaves out what does not fit. It needs no lock, so no event waits
// for it.
func (s *State) finish() {
	all := len(s.Leases)
	s.Leases = fitting(s.Leases, shownLeaseBytes, (*Lease).finish)
	s.LeasesHidden += all - len(s.Leases)
	slices.SortFunc(s.Leases, func(a, b Lease) int {
		return cmp.Or(compareBool(a.Held, b.Held), strings.Compare(a.Name, b.Name))
	})

	all = len(s.Clients)
	s.Clients = fitting(s.Clients, shownClientBytes, (*Client).finish)
	s.ClientsHidden += all - len(s.Clients)
	slices.SortFunc(s.Clients, func(a, b Client) int { return cmp.Compare(a.Client, b.Client) })

	all = len(s.Timeline)
	s.Timeline = fitting(s.Timeline, shownTimelineBytes, (*Change).finish)
	s.TimelineForgotten += uint64(all - len(s.Timeline))
	slices.SortFunc(s.Timeline, func(a, b Change) int {
		return cmp.Or(b.latest().Compare(a.latest()), cmp.Compare(b.number, a.number))
	})

	s.StaleWrites = fitting(s.StaleWrites, shownStaleBytes, (*StaleWrite).finish)
	slices.SortFunc(s.StaleWrites, func(a, b StaleWrite) int { return cmp.Compare(b.number, a.number) })
}

// fitting returns the first rows, for as long as all of them have limit bytes or less. finish makes a
// row printable, and returns its bytes.
func fitting[T any](rows []T, limit int, finish func(*T) int) []T {
	for i := range rows {
		if limit -= finish(&rows[i]); limit < 0 {
			return slices.Clip(rows[:i])
		}
	}
	return rows
}

// finish makes a lease printable, and returns its bytes as JSON, about.
func (l *Lease) finish() int {
	size := leaseBytes + printable(&l.Name, &l.Holder, &l.Client, &l.Value)
	if l.LastChange != nil {
		size += l.LastChange.finish()
	}
	for i := range l.Waiting {
		w := &l.Waiting[i]
		size += waiterBytes + printable(&w.Client)
		if size > shownRowBytes && i > 0 {
			l.WaitingHidden += len(l.Waiting) - i
			l.Waiting = slices.Clip(l.Waiting[:i])
			return size
		}
	}
	return size
}

func (h *Change) finish() int {
	return changeBytes + printable(&h.Name, &h.From, &h.To, &h.By, &h.ByUser, &h.Forced)
}

func (c *Client) finish() int { return clientBytes + printable(&c.Client, &c.User) }

func (w *StaleWrite) finish() int { return staleBytes + printable(&w.Key, &w.Client, &w.User) }

// printable makes texts printable, and returns their bytes as JSON.
func printable(texts ...*string) (bytes int) {
	for _, text := range texts {
		*text = Printable(*text)
		bytes += len(*text) + strings.Count(*text, `"`) + strings.Count(*text, `\`)
	}
	return bytes
}
