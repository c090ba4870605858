package activity

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/statestore"
)

// A State as JSON is bounded in bytes too, because clients choose how long names are, and how many of
// their characters must be escaped. A thousand leases with names of usual lengths fit.
const (
	shownLeaseBytes, shownClientBytes   = 2048 << 10, 512 << 10
	shownTimelineBytes, shownStaleBytes = 288 << 10, 64 << 10
	// shownRowBytes bounds one lease: beyond that, waiting clients are left out.
	shownRowBytes = 4 << 10

	// These are the most bytes of rows as JSON, without the texts that clients choose.
	leaseBytes, waiterBytes, changeBytes, clientBytes, staleBytes = 630, 170, 350, 440, 260
)

// MaxJSON bounds a State as JSON, in bytes, without what the caller adds to it.
const MaxJSON = shownLeaseBytes + shownClientBytes + shownTimelineBytes + shownStaleBytes + 8<<10

// Bound makes the texts of a state printable, and leaves out what does not fit: of the leases, the clients
// and the others the last ones. Then it sorts the leases and clients.
func (s *State) Bound() {
	fit(&s.Leases, &s.LeasesHidden, shownLeaseBytes, boundLease)
	for i := range s.Leases {
		s.Leases[i].Turn = i
	}
	slices.SortFunc(s.Leases, func(a, b statestore.Lease) int {
		return cmp.Or(shown.Compare(a.Held, b.Held), strings.Compare(a.Name, b.Name))
	})
	fit(&s.Clients, &s.ClientsHidden, shownClientBytes, func(c *Client) int {
		return clientBytes + printable(&c.Client, &c.User)
	})
	slices.SortFunc(s.Clients, func(a, b Client) int { return strings.Compare(a.Client, b.Client) })
	fit(&s.Timeline, &s.TimelineHidden, shownTimelineBytes, boundChange)
	slices.SortStableFunc(s.Timeline, func(a, b statestore.HolderChange) int { return b.Latest().Compare(a.Latest()) })
	fit(&s.StaleWrites, new(int), shownStaleBytes, func(w *StaleWrite) int {
		return staleBytes + printable(&w.Key, &w.Client, &w.User)
	})
}

// fit keeps the first rows, as far as all of them have limit bytes or less, and counts the others as hidden.
// bound makes a row printable, and returns its bytes as JSON, about.
func fit[T any](rows *[]T, hidden *int, limit int, bound func(*T) int) {
	for i := range *rows {
		if limit -= bound(&(*rows)[i]); limit < 0 {
			*hidden += len(*rows) - i
			*rows = slices.Clip((*rows)[:i])
			return
		}
	}
}

func boundLease(l *statestore.Lease) int {
	size := leaseBytes + printable(&l.Name, &l.Holder, &l.Client, &l.Value, &l.Gone)
	if l.LastChange != nil {
		size += boundChange(l.LastChange)
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

func boundChange(h *statestore.HolderChange) int {
	return changeBytes + printable(&h.Name, &h.From, &h.To, &h.By, &h.ByUser, &h.Forced)
}

// printable makes texts printable, and returns their bytes as JSON.
func printable(texts ...*string) (bytes int) {
	for _, text := range texts {
		*text = shown.Printable(*text)
		bytes += len(*text) + strings.Count(*text, `"`) + strings.Count(*text, `\`)
	}
	return bytes
}
