package engine

// How the model gives requests to the engine, and judges what it does with them.

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// command returns the command of a request, as it arrives.
func (p *process) command(i int) statestore.Command {
	r := &p.requests[i]
	w := p.scope.menu[r.wish]
	wall := time.Now().Add(time.Duration(r.tick) * ticked)
	if w.ahead {
		wall = wall.Add(12 * time.Second)
	}
	stamp := hlc.Timestamp{Wall: wall.UnixMilli(), Node: clients[w.client]}.String()
	words := strings.Fields(w.words)
	asked := statestore.Request{Client: clients[w.client], Timestamp: &stamp}
	if last := len(words) - 1; words[last] == "ft" {
		words = words[:last]
		token := r.token.String()
		asked.FencingToken = &token
	}
	asked.Payload = resp3.AppendCommand(nil, words...)
	if !r.isWill {
		asked.Correlation, asked.PacketID = []byte{byte(i) + 1}, uint16(i)+1
	}
	if r.again {
		asked.Delivery = statestore.Redelivery
	}
	command := statestore.Parse(asked)
	command.Willed = w.willed && command.Verb == statestore.VerbSet
	return command
}

// submit gives a request to the engine, and checks what it does.
func (p *process) submit(i int) {
	r, e := &p.requests[i], p.engine
	w := p.scope.menu[r.wish]
	command := p.command(i)
	remembered := r.applied && command.Verb != statestore.VerbGet && (command.Verb != statestore.VerbKeyNotify || r.connection == p.connections[w.client])
	r.resent = r.again
	r.again, r.connection = false, p.connections[w.client]
	waits := &waiting{request: i, connection: r.connection}
	before, held := p.total(), e.order
	var reply statestore.Reply
	now := false
	if w.try {
		if reply, now = e.TrySubmit(command); !now && e.life.Err() == nil && (p.total() != before || e.order != held) {
			p.breaks("TrySubmit refused a request and changed something")
		}
		if now && p.total() > before && !p.onlyBound(before) {
			p.breaks("33: TrySubmit let a reply leave that has a record")
		}
	}
	if !now {
		submitted := false
		reply, now = e.Submit(command, func(reply statestore.Reply) {
			if submitted && !p.killed {
				p.leaves(waits, reply)
			}
		})
		submitted = true
	}
	if e.sealed || e.life.Err() != nil {
		if now {
			p.breaks("34: a store that has stopped answers")
		}
		return
	}
	if e.order > held {
		p.heldBy[e.order] = waits
	}
	if remembered {
		if p.total() > before && !p.onlyBound(before) {
			p.breaks("23: a redelivery has records")
		}
		if got := reply; got.Outcome != r.reply.Outcome || got.Version != r.reply.Version || got.Err != r.reply.Err {
			p.breaks("23: a redelivery got %+v, the first delivery %+v", got, r.reply)
		}
	} else {
		p.judge(i, &command, reply, before)
	}
	waits.need = r.need
	if now {
		p.leaves(waits, reply)
	} else if key := slices.Index(keyNames[:], command.Key); max(r.need, p.need[key]) <= p.reported() && reply.Err != protocol.QuotaExceeded {
		p.breaks("59: %s waits for a commit that it does not show", w.words)
	}
}

func (p *process) Standing() error {
	if p.ousted {
		return errDisk
	}
	return nil
}

// oust takes the standing away. What a commit has proved until then may still leave.
func (p *process) oust() {
	p.ousted = true
	if p.at == idle || p.at == inCommit {
		return
	}
	for _, h := range p.engine.committing.pending {
		if waits := p.heldBy[h.order]; waits != nil && !h.late {
			waits.proven = true
		}
	}
}

// reported returns how many groups are durable as far as the engine knows.
func (p *process) reported() int {
	if p.at != idle {
		return p.durableBefore
	}
	return p.durable
}

// onlyBound reports whether the groups after the first are about the versions only.
func (p *process) onlyBound(first int) bool {
	groups := p.engine.open.groups
	for _, group := range groups[len(groups)-(p.total()-first):] {
		if len(group) != 1 || group[0].ID[0] != 'b' {
			return false
		}
	}
	return true
}

// judge checks the reply to a request that is applied for the first time.
func (p *process) judge(i int, command *statestore.Command, reply statestore.Reply, before int) {
	r := &p.requests[i]
	key := slices.Index(keyNames[:], command.Key)
	o := operation{words: []string{command.Verb.String()}, value: string(command.Value), lifetime: command.Lifetime, at: p.instant(), reply: reply}
	o.condition = [...]string{"", "NX", "NEX"}[command.Condition]
	if strings.HasSuffix(p.scope.menu[r.wish].words, " ft") {
		o.token = r.token
	}
	was, watched := p.keys[key].at(o.at), p.watches[key]
	due := p.keys[key].exists && !was.exists
	var renewal bool
	switch {
	case command.Verb == statestore.VerbKeyNotify:
		p.watches[key] = true
		p.keys[key] = was
		if reply.Outcome != statestore.OK {
			p.breaks("27: KEYNOTIFY: %+v", reply)
		}
	case reply.Err == protocol.FencingTokenNeverIssued && p.scope.strict && p.keys[0].latest.IsZero() && p.keys[1].latest.IsZero():
		p.keys[key] = was // no version was issued yet
	case reply.Err == protocol.QuotaExceeded && p.scope.maxKeys > 0 && !was.exists && p.keys[1-key].at(o.at).exists:
		p.keys[key] = was
	default:
		renewal = was.renews(o) && command.Willed == (key == 0 && p.willed) && reply.Outcome == statestore.OK
		next, ok := p.keys[key].apply(o)
		if !ok {
			p.breaks("30: the reply to %s is %+v, and the key is %+v", p.scope.menu[r.wish].words, reply, was)
		}
		p.keys[key] = next
	}
	if key == 0 && command.Verb == statestore.VerbSet && reply.Outcome == statestore.OK {
		p.willed = command.Willed
	}
	r.applied, r.reply, r.group = true, reply, 0
	needed := p.need[key]
	for g, group := range p.noteGroups(before, was) {
		if group[len(group)-1].ID[0] == 'r' {
			r.group = before + g + 1
		} else if own := before+g+1 == p.total() && group[0].ID[0] == 'k' && reply.Outcome != statestore.ConditionFailed; own && !r.isWill && command.Verb != statestore.VerbKeyNotify && command.Verb != statestore.VerbGet && reply.Outcome == statestore.OK && !was.exists {
			p.breaks("23: the reply to %s has no record beside its key", p.scope.menu[r.wish].words)
		}
	}
	after := p.keys[key]
	if kept := after.exists == was.exists && after.value == was.value && after.lifetime == was.lifetime && after.token == was.token; !kept && p.need[key] <= before {
		p.breaks("37: %s changed its key without a record", p.scope.menu[r.wish].words)
	}
	r.need = max(p.need[key], r.group)
	if reply.Err == protocol.QuotaExceeded {
		r.need = max(p.need[0], p.need[1])
	}
	if reply.Outcome == statestore.OK && command.Verb == statestore.VerbSet && reply.Version.Compare(p.seen) <= 0 {
		p.breaks("36: the version %v is not above %v, which has left", reply.Version, p.seen)
	}
	if renewal && needed <= p.reported() && p.total() > before && !p.onlyBound(before) { // the key is unchanged since the last commit
		p.breaks("59: a renewal has a record")
	}
	changes := 0
	if due {
		changes++
	}
	if reply.Outcome == statestore.Deleted || reply.Outcome == statestore.OK && command.Verb == statestore.VerbSet {
		changes++
	}
	if !watched {
		changes = 0
	}
	p.noteChanges(key, changes)
}

// noteGroups notes what the groups of this move, which it returns, say of the keys. was is the register before, if there is
// more than one group about its key.
func (p *process) noteGroups(before int, was register) []statestore.Group {
	groups := p.engine.open.groups
	groups = groups[len(groups)-(p.total()-before):]
	for g, group := range groups {
		key := slices.Index(keyNames[:], string(group[0].ID[1:]))
		if group[0].ID[0] != 'k' || key < 0 {
			continue
		}
		after := p.keys[key]
		if slices.ContainsFunc(groups[g+1:], func(later statestore.Group) bool { return string(later[0].ID) == string(group[0].ID) }) {
			after = was.gone()
		}
		p.need[key] = before + g + 1
		p.history = append(p.history, past{before + g + 1, key, after, p.willed})
	}
	return groups
}

// noteChanges finds the notifications of this move, of which there are as many as changes of a key.
func (p *process) noteChanges(key, changes int) {
	for _, n := range p.fresh {
		for _, earlier := range p.pending {
			if earlier.client == n.Client && earlier.change.Key == n.Key {
				p.breaks("a notification of %s overtakes an earlier one", n.Key)
			}
		}
		p.shows(p.need[slices.Index(keyNames[:], n.Key)], n.Version, "a notification of "+n.Key)
		p.known[n.Change] = true
		changes--
	}
	p.fresh = nil
	for _, b := range []*batch{p.engine.committing, p.engine.open} {
		if b == nil {
			continue
		}
		for _, h := range b.pending {
			for _, n := range h.notifications {
				if !p.known[n.Change] {
					p.known[n.Change] = true
					p.pending = append(p.pending, note{n.Client, n.Change, p.need[slices.Index(keyNames[:], n.Key)]})
					changes--
				}
			}
		}
	}
	if changes != 0 {
		p.breaks("%d notifications of %s are missing", changes, keyNames[key])
	}
}

// deliver takes a notification.
func (p *process) deliver(n statestore.Notification) {
	if p.killed {
		return
	}
	if !p.known[n.Change] {
		p.fresh = append(p.fresh, n)
		return
	}
	i := slices.IndexFunc(p.pending, func(x note) bool { return x.client == n.Client && x.change.Key == n.Key })
	if i < 0 || p.pending[i].change != n.Change {
		p.breaks("%s hears of a change of %s out of order, or of an earlier connection", n.Client, n.Key)
		return
	}
	p.shows(p.pending[i].need, n.Version, "a notification of "+n.Key)
	p.pending = slices.Delete(p.pending, i, i+1)
}

// shows checks that what leaves is durable.
func (p *process) shows(need int, version hlc.Timestamp, what string) {
	if p.failed {
		p.breaks("34: %s leaves after the end", what)
	}
	if need > p.durable {
		p.breaks("33: %s leaves while %d groups are durable, and it shows %d", what, p.durable, need)
	}
	if bound, err := (statestore.Record{ID: []byte("b"), Value: p.disk["b"]}).Decode(); err != nil || !version.IsZero() && version.Wall > bound.Version.Wall {
		p.breaks("36: %s has the version %v, which is above the durable bound %v: %v", what, version, bound.Version, err)
	}
	if version.Compare(p.seen) > 0 {
		p.seen = version
	}
}

// leaves takes the reply to a request.
func (p *process) leaves(waits *waiting, reply statestore.Reply) {
	i := waits.request
	r := &p.requests[i]
	w := p.scope.menu[r.wish]
	version := reply.Version
	if reply.Outcome == statestore.Refused {
		version = hlc.Timestamp{}
	}
	p.shows(waits.need, version, "the reply to "+w.words)
	if p.ousted && !waits.proven {
		p.breaks("35: the reply to %s leaves without standing", w.words)
	}
	if waits.connection != p.connections[w.client] || r.isWill {
		return // it is lost
	}
	first := !r.answered
	r.answered = true
	if reply.Verb != statestore.VerbSet || reply.Outcome != statestore.OK {
		return
	}
	if first {
		if slices.Contains(p.shown, version) {
			p.breaks("11: the version %v was issued twice", version)
		}
		p.shown = append(p.shown, version)
	}
	if !strings.HasPrefix(w.words, "SET l") || w.willed && r.resent || slices.ContainsFunc(p.requests[i+1:], func(later request) bool {
		l := p.scope.menu[later.wish]
		return l.client == w.client && strings.HasPrefix(l.words, "VDEL")
	}) {
		return
	}
	until := int(r.tick) + lifetimeOf(w.words)
	if p.until[1-w.client] > p.now && until > p.now {
		p.breaks("59: %s believes to hold the lease, and %s as well", clients[w.client], clients[1-w.client])
	}
	if p.until[w.client] <= p.now {
		p.tokens[w.client] = hlc.Token(version)
	}
	p.until[w.client] = max(p.until[w.client], until)
}

// lifetimeOf returns the PX of a SET in ticks.
func lifetimeOf(words string) int {
	_, px, _ := strings.Cut(words, "PX ")
	millis, _ := strconv.Atoi(px)
	return int(time.Duration(millis) * time.Millisecond / ticked)
}
