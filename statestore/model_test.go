package statestore

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A model is a second implementation of the protocol, as simple as possible: lists, linear scans,
// and keys that do not exist from their deadline on. It shares no code with the store.
type model struct {
	options Options
	clock   modelStamp
	keys    []modelKey
	watches []modelWatch // in the order in which they began
}

type modelKey struct {
	name, value    string
	version, token modelStamp
	deadline       time.Duration // 0: none
}

type modelWatch struct{ client, key string }

// A modelStamp is a timestamp; the zero value means that there is none.
type modelStamp struct {
	wall    int64
	counter uint64
	node    string
}

func (s modelStamp) String() string { return fmt.Sprintf("%d:%d:%s", s.wall, s.counter, s.node) }

func (s modelStamp) less(o modelStamp) bool {
	return cmp.Or(cmp.Compare(s.wall, o.wall), cmp.Compare(s.counter, o.counter), cmp.Compare(s.node, o.node)) < 0
}

// A modelRequest is a request that is well-formed, unless its stamps are not.
type modelRequest struct {
	client, verb, key, value string
	condition                string // "", NX, NEX
	px                       int64  // 0: none
	pxFirst, stop, denied    bool
	ts, ft                   modelProperty
}

type modelProperty struct {
	present, malformed bool
	stamp              modelStamp
}

func (p modelProperty) text() string {
	switch {
	case !p.present:
		return ""
	case p.malformed:
		return "10:0:a:b"
	}
	return p.stamp.String()
}

func (r modelRequest) request() request {
	words := []string{r.verb, r.key}
	switch r.verb {
	case "SET":
		words = append(words, r.value)
		var px []string
		if r.px != 0 {
			px = []string{"PX", fmt.Sprint(r.px)}
		}
		if r.pxFirst {
			words = append(words, px...)
		}
		if r.condition != "" {
			words = append(words, r.condition)
		}
		if !r.pxFirst {
			words = append(words, px...)
		}
	case "VDEL":
		words = append(words, r.value)
	case "KEYNOTIFY":
		if r.stop {
			words = append(words, "STOP")
		}
	}
	return request{client: r.client, words: words, ts: cmp.Or(r.ts.text(), "-"), ft: r.ft.text(), denied: r.denied}
}

func (m *model) find(now Instant, name string) *modelKey {
	for i := range m.keys {
		if m.keys[i].name == name && !m.keys[i].gone(now) {
			return &m.keys[i]
		}
	}
	return nil
}

// size is what a token counts.
func (s modelStamp) size() int {
	if s == (modelStamp{}) {
		return 0
	}
	return 16 + len(s.node)
}

func (k modelKey) gone(now Instant) bool { return k.deadline != 0 && k.deadline <= now.Elapsed }

// live returns the number of keys, and the lengths of their keys, values and tokens.
func (m *model) live(now Instant) (keys, bytes int) {
	for _, k := range m.keys {
		if !k.gone(now) {
			keys++
			bytes += len(k.name) + len(k.value) + k.token.size()
		}
	}
	return keys, bytes
}

func (m *model) drop(name string) {
	m.keys = slices.DeleteFunc(m.keys, func(k modelKey) bool { return k.name == name })
}

// notify returns the lines that the watchers of a key get.
func (m *model) notify(k modelKey, deleted bool) (lines []string) {
	for _, w := range m.watches {
		switch {
		case w.key != k.name:
		case deleted:
			lines = append(lines, deleteLine(w.client, k.name, k.version.String()))
		default:
			lines = append(lines, setLine(w.client, k.name, k.value, k.version.String()))
		}
	}
	return lines
}

func (m *model) disconnect(client string) {
	m.watches = slices.DeleteFunc(m.watches, func(w modelWatch) bool { return w.client == client })
}

// refused returns the text of the refusal of a request by itself, before its key is
// looked at (docs/protocol.md §4.4, authorization to skew).
func (m *model) refused(now Instant, r modelRequest) string {
	switch {
	case r.denied:
		return textDenied
	case r.verb == "SET" && !r.ts.present:
		return textNoTimestamp
	case r.ts.malformed:
		return textBadTimestamp
	case r.ts.stamp.wall-now.WallMillis > 60_000:
		return textTimestampAhead
	case r.ft.malformed:
		return textBadTimestamp
	case r.ft.stamp.wall-now.WallMillis > 60_000 && m.clock.less(r.ft.stamp):
		return textTokenAhead
	}
	return ""
}

// apply returns the reply to a request and the notifications that it causes itself, without
// the notifications of expired keys.
func (m *model) apply(now Instant, r modelRequest) (answer string, lines []string) {
	if text := m.refused(now, r); text != "" {
		return refusalAt(text, now.WallMillis), nil
	}
	k := m.find(now, r.key)
	if k != nil && k.token != (modelStamp{}) && (r.verb == "SET" || strings.HasSuffix(r.verb, "DEL")) {
		if !r.ft.present {
			return refusal(textTokenRequired), nil
		}
		if r.ft.stamp.less(k.token) {
			return refusal(textTokenLower), nil
		}
	}
	switch r.verb {
	case "SET":
		return m.set(now, r, k)
	case "GET":
		if k == nil {
			return "$-1\r\n", nil
		}
		return fmt.Sprintf("$%d\r\n%s\r\n@%s", len(k.value), k.value, k.version), nil
	case "DEL", "VDEL":
		switch {
		case k == nil:
			return ":0\r\n", nil
		case r.verb == "VDEL" && k.value != r.value:
			return ":-1\r\n", nil
		}
		gone := *k
		m.drop(r.key)
		return ":1\r\n@" + gone.version.String(), m.notify(gone, true)
	}
	watch := modelWatch{r.client, r.key}
	watching := slices.Index(m.watches, watch)
	switch {
	case r.stop && watching < 0:
		return ":0\r\n", nil
	case r.stop:
		m.watches = slices.Delete(m.watches, watching, watching+1)
	case watching < 0:
		m.watches = append(m.watches, watch)
	}
	return "+OK\r\n", nil
}

func (m *model) set(now Instant, r modelRequest, k *modelKey) (answer string, lines []string) {
	if k != nil && (r.condition == "NX" || r.condition == "NEX" && k.value != r.value) {
		return ":-1\r\n@" + k.version.String(), nil
	}
	keys, bytes := m.live(now)
	added := len(r.key) + len(r.value) + r.ft.stamp.size()
	if k != nil {
		added -= len(k.name) + len(k.value) + k.token.size()
		if !k.token.less(r.ft.stamp) {
			added += k.token.size() - r.ft.stamp.size()
		}
	}
	if k == nil && m.options.MaxKeys > 0 && keys == m.options.MaxKeys ||
		added > 0 && m.options.MaxBytes > 0 && int64(bytes+added) > m.options.MaxBytes {
		return refusal(textQuota), nil
	}
	version := modelStamp{wall: max(m.clock.wall, r.ts.stamp.wall, now.WallMillis), node: storeNode}
	for _, s := range []modelStamp{m.clock, r.ts.stamp} {
		if s.wall == version.wall {
			if s.counter == math.MaxUint64 {
				return refusal(textBadTimestamp), nil
			}
			version.counter = max(version.counter, s.counter+1)
		}
	}
	// Deployed clients keep it in 32 bits: docs/protocol.md §3.2.
	if version.counter > 1<<30 || version.counter > 1<<20 && version.counter == r.ts.stamp.counter+1 {
		version.wall, version.counter = version.wall+1, 0
	}
	m.clock = version
	next := modelKey{name: r.key, value: r.value, version: version}
	if k != nil {
		next.token = k.token
	}
	if next.token.less(r.ft.stamp) {
		next.token = r.ft.stamp
	}
	if r.px != 0 {
		next.deadline = math.MaxInt64
		if r.px < 1<<40 {
			next.deadline = now.Elapsed + time.Duration(r.px)*time.Millisecond
		}
	}
	m.drop(r.key)
	m.keys = append(m.keys, next)
	return "+OK\r\n@" + version.String(), m.notify(next, false)
}

// expire removes the keys whose notifications are at the front of lines, and returns the other
// lines. The first of the keys may be the key of the request; the others are in the order of
// their deadlines. The error says what is wrong with the lines.
func (m *model) expire(now Instant, lines []string, about string) (rest []string, err error) {
	var last time.Duration
	for len(lines) > 0 {
		found := false
		for _, k := range m.keys {
			block := m.notify(k, true)
			if !k.gone(now) || len(block) == 0 || len(lines) < len(block) || !slices.Equal(lines[:len(block)], block) {
				continue
			}
			if k.name != about {
				if k.deadline < last {
					err = fmt.Errorf("key %q, due at %v, was announced after one that was due at %v", k.name, k.deadline, last)
				}
				last = k.deadline
			}
			m.drop(k.name)
			lines, found = lines[len(block):], true
			break
		}
		if !found {
			break
		}
	}
	for _, k := range m.keys {
		if k.gone(now) && k.deadline < last && len(m.notify(k, true)) > 0 {
			err = fmt.Errorf("key %q, due at %v, is left after one that was due at %v", k.name, k.deadline, last)
		}
	}
	return lines, err
}
