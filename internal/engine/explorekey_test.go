package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
)

// A digest appends all that a value reaches, fields that are not exported too, so a field that is new
// belongs to the key of a state without more. Pointers count by the order in which they are met, maps by their keys.
type digest struct {
	key []byte
	met map[uintptr]uint16
}

// leftOut are the types that decide nothing: seeds that differ from process to process, and what is
// derived from other fields, in an order that the seed decides; options, which are the same in all states of
// a scope; the history of leases, which is only shown.
var leftOut = map[string]bool{
	"maphash.Seed": true, "statestore.link": true, "statestore.Options": true,
	"statestore.leases": true, "statestore.HolderChange": true,
}

func (d *digest) number(n uint64) { d.key = binary.AppendUvarint(d.key, n) }

func (d *digest) text(s string) {
	d.number(uint64(len(s)))
	d.key = append(d.key, s...)
}

func (d *digest) add(values ...any) {
	for _, value := range values {
		d.value(reflect.ValueOf(value))
	}
}

func (d *digest) value(v reflect.Value) {
	if v.IsValid() && leftOut[v.Type().String()] {
		return
	}
	switch v.Kind() {
	case reflect.Invalid, reflect.Func, reflect.Chan:
	case reflect.Bool:
		d.key = append(d.key, map[bool]byte{true: 1}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.key = binary.AppendVarint(d.key, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.number(v.Uint())
	case reflect.String:
		d.text(v.String())
	case reflect.Interface:
		if v.IsNil() {
			d.number(0)
			return
		}
		d.text(v.Elem().Type().Name())
		d.value(v.Elem())
	case reflect.Pointer:
		d.pointer(v)
	case reflect.Struct:
		if v.Type().String() == "statestore.lease" { // its holder decides what renews it
			v = v.FieldByName("holder").Elem().FieldByName("sourceID")
		}
		for i := range v.NumField() {
			d.value(v.Field(i))
		}
	case reflect.Array, reflect.Slice:
		d.number(uint64(v.Len()))
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Map:
		d.entries(v)
	default:
		panic(fmt.Sprintf("a state has a %v", v.Type()))
	}
}

func (d *digest) pointer(v reflect.Value) {
	if v.IsNil() {
		d.number(0)
		return
	}
	at := v.Pointer()
	if known := d.met[at]; known != 0 {
		d.number(uint64(known))
		return
	}
	d.met[at] = uint16(len(d.met) + 1)
	d.number(uint64(len(d.met)))
	d.value(v.Elem())
}

// entries appends a map, whose keys have no pointers.
func (d *digest) entries(m reflect.Value) {
	type entry struct {
		key   []byte
		value reflect.Value
	}
	entries := make([]entry, 0, m.Len())
	for each := m.MapRange(); each.Next(); {
		var name digest
		name.value(each.Key())
		entries = append(entries, entry{name.key, each.Value()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	d.number(uint64(len(entries)))
	for _, e := range entries {
		d.key = append(d.key, e.key...)
		d.value(e.value)
	}
}

// isHistory reports whether a record with some ID is a change of a lease.
func isHistory(id string) bool { return id[0] == 'h' }

// digest returns what decides the future of a process and of its surroundings.
func (p *process) digest(to []byte) []byte {
	d := digest{key: to, met: make(map[uintptr]uint16)}
	w := p.world
	disk := w.disk
	w.disk = nil
	// What is durable is so for all, whatever its number.
	ahead := func(group int) int { return max(group-p.durable, 0) }
	w.requests = slices.Clone(w.requests)
	for i := range w.requests {
		r := &w.requests[i]
		if r.need = ahead(r.need); r.group > 0 && ahead(r.group) == 0 {
			r.group = -1
		}
		r.group = max(r.group-p.durable, min(r.group, 0))
		r.connection -= w.connections[p.scope.menu[r.wish].client] // 0: it is the present one
		if !r.again && (r.forgotten || r.answered && w.left.crashes+w.left.drops == 0) {
			r.tick, r.token, r.reply = 0, hlc.Token{}, statestore.Reply{} // it does not come again
		}
	}
	w.connections = [2]uint8{}
	for client := range w.until {
		w.until[client] = max(w.until[client]-w.now, 0)
	}
	if p.engine == nil {
		w.began = 0 // of the former process
	} else {
		w.ended = 0 // the end of this one counts
	}
	d.add(w)
	for _, id := range slices.Sorted(maps.Keys(disk)) {
		if isHistory(id) {
			continue
		}
		d.text(id)
		d.text(string(disk[id]))
	}
	if p.engine == nil {
		return d.key
	}
	e := p.engine
	d.add(e.store, e.next, e.armed, e.sealed, len(e.wake), len(e.commit), e.wall.time.UnixMilli(), p.at, p.durable-p.durableBefore, p.sealed, p.ousted, e.life.Err() != nil, p.last, ahead(p.need[0]), ahead(p.need[1]))
	wait := func(x *waiting) {
		if x != nil {
			d.add(x.request, x.connection == p.connections[p.scope.menu[p.requests[x.request].wish].client], ahead(x.need), x.proven)
		}
	}
	for _, h := range p.history {
		d.add(ahead(h.group), h.key, h.register, h.willed)
	}
	for _, note := range p.pending {
		d.add(note.client, note.change.Key, note.change.Version, ahead(note.need))
	}
	for _, b := range []*batch{e.open, e.committing} {
		if b == nil {
			d.number(0)
			continue
		}
		for _, group := range b.groups {
			d.add(slices.DeleteFunc(slices.Clone(group), func(record statestore.Record) bool { return isHistory(string(record.ID)) }))
		}
		d.add(b.keys, b.bound, len(b.pending))
		for _, h := range b.pending {
			wait(p.heldBy[h.order])
			d.add(h.notifications, h.reply, h.late)
		}
		rank := func(order uint64) (n int) { // how many were held until then
			for _, h := range b.pending {
				if h.order <= order {
					n++
				}
			}
			return n
		}
		d.add(rank(b.last))
		for _, client := range slices.Sorted(maps.Keys(b.notified)) {
			d.add(strings.Clone(client), rank(b.notified[client]))
		}
	}
	return d.key
}
