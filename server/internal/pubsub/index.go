package pubsub

import "strings"

// index finds the topic filters that match a topic [MQTT-4.7]. Each has a value. A search looks up the topic
// itself, and then the topic with + in place of some levels, for each choice of levels that a filter has. So it
// takes a step for each choice, and not for each filter: at most 2^(n+1) for a topic with n levels. A + that is
// not among the first 64 levels matches nothing.
type index[V any] struct {
	values map[string]V
	forms  map[form]map[uint64]int // which levels are +, with how many filters have these
}

// form is the form of filters with a wildcard.
type form struct {
	levels int  // without #
	more   bool // # follows
}

// formOf returns the form of a filter and which of its levels are +. It reports false for a filter without
// wildcards.
func formOf(filter string) (f form, plus uint64, wild bool) {
	if !strings.ContainsAny(filter, "+#") {
		return f, 0, false
	}
	for level := range strings.SplitSeq(filter, "/") {
		switch level {
		case "#":
			f.more = true
			return f, plus, true
		case "+":
			plus |= 1 << f.levels
		}
		f.levels++
	}
	return f, plus, true
}

// set adds a filter, or replaces its value.
func (x *index[V]) set(filter string, value V) {
	if x.values == nil {
		x.values = make(map[string]V)
	}
	_, existed := x.values[filter]
	x.values[filter] = value
	f, plus, wild := formOf(filter)
	if existed || !wild {
		return
	}
	if x.forms == nil {
		x.forms = make(map[form]map[uint64]int)
	}
	if x.forms[f] == nil {
		x.forms[f] = make(map[uint64]int)
	}
	x.forms[f][plus]++
}

// remove removes a filter, which the index has.
func (x *index[V]) remove(filter string) {
	if delete(x.values, filter); len(x.values) == 0 {
		x.values = nil // maps do not shrink
	}
	f, plus, wild := formOf(filter)
	if !wild {
		return
	}
	choices := x.forms[f]
	if choices[plus]--; choices[plus] > 0 {
		return
	}
	if delete(choices, plus); len(choices) == 0 {
		delete(x.forms, f)
	}
}

// search calls found with the value of each filter that matches a topic. It calls step before each, and once for
// each choice. The index may change in step: then the search may find or miss what was added or removed.
func (x *index[V]) search(topic string, step func(), found func(V)) {
	if value, ok := x.values[topic]; ok {
		step()
		found(value)
	}
	if len(x.forms) == 0 {
		return
	}
	var usual [16]string // so that most topics allocate nothing
	levels := usual[:0]
	for level := range strings.SplitSeq(topic, "/") {
		levels = append(levels, level)
	}
	system := strings.HasPrefix(topic, "$") // matched by no wildcard at the beginning [MQTT-4.7.2-1]
	try := func(f form) {
		for plus := range x.forms[f] {
			step()
			if system && (f.levels == 0 || plus&1 != 0) {
				continue
			}
			var buffer [256]byte
			if value, ok := x.values[string(f.append(buffer[:0], levels, plus))]; ok {
				found(value)
			}
		}
	}
	try(form{levels: len(levels)})
	for n := range len(levels) + 1 { // # also matches the level above [MQTT-4.7.1-2]
		try(form{levels: n, more: true})
	}
}

// append appends the filter of a form with the levels of a topic, besides those that are +.
func (f form) append(dst []byte, levels []string, plus uint64) []byte {
	for i, level := range levels[:f.levels] {
		if i > 0 {
			dst = append(dst, '/')
		}
		if plus>>i&1 != 0 {
			level = "+"
		}
		dst = append(dst, level...)
	}
	switch {
	case f.more && f.levels == 0:
		return append(dst, '#')
	case f.more:
		return append(dst, "/#"...)
	}
	return dst
}
