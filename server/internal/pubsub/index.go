package pubsub

import (
	"math/bits"
	"strings"
)

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

// choiceCost is what a choice of levels costs that a search would not try without it.
const choiceCost = 64 << 10

// cost returns what a filter adds to each search: nothing if another one has the same choice of levels, or if at
// most one level is +, of which there are few choices.
func (x *index[V]) cost(filter string) int64 {
	f, plus, _ := formOf(filter)
	if bits.OnesCount64(plus) < 2 || x.forms[f][plus] > 0 {
		return 0
	}
	return choiceCost
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

// search calls found with the value of each filter that matches a topic. It calls step for each choice, with the
// steps that it costs, and gives up when that reports false. The index may change in step: then the search may find
// or miss what was added or removed.
func (x *index[V]) search(topic string, step func(cost int) (goOn bool), found func(V)) {
	if value, ok := x.values[topic]; ok {
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
	var short [256]byte                     // so that most filters allocate nothing
	filter, cost := short[:0], 1+len(topic)/128
	try := func(f form) (goOn bool) {
		for plus := range x.forms[f] {
			if !step(cost) {
				return false
			}
			if system && (f.levels == 0 || plus&1 != 0) {
				continue
			}
			filter = f.append(filter[:0], levels, plus)
			if value, ok := x.values[string(filter)]; ok {
				found(value)
			}
		}
		return true
	}
	goOn := try(form{levels: len(levels)})
	for n := 0; goOn && n <= len(levels); n++ { // # also matches the level above [MQTT-4.7.1-2]
		goOn = try(form{levels: n, more: true})
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
