package pubsub

import (
	"container/heap"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// retained has the retained messages.
type retained struct {
	messages int   // the most messages
	most     int64 // the most bytes

	mu       sync.RWMutex
	byTopic  map[string]*kept
	inOrder  []*kept // by topic
	expiring expiring
	bytes    int64
}

// expiring is a heap of the messages that expire. The first one expires first.
type expiring []*kept

func (e expiring) Len() int           { return len(e) }
func (e expiring) Less(i, j int) bool { return e[i].message.Expires.Before(e[j].message.Expires) }

func (e expiring) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].at, e[j].at = i, j
}

func (e *expiring) Push(k any) {
	k.(*kept).at = len(*e)
	*e = append(*e, k.(*kept))
}

func (e *expiring) Pop() any {
	last := len(*e) - 1
	k := (*e)[last]
	(*e)[last] = nil // it may be garbage from now on
	*e = (*e)[:last]
	return k
}

// kept is a retained message.
type kept struct {
	message *Message
	size    int64
	at      int // its place in expiring, if it is there
}

// set retains a message in place of the one with its topic, or removes that one if the payload is
// empty. If it returns ErrNotRetained, it has removed the old one too, which is outdated.
func (r *retained) set(m *Message) error {
	for {
		done, err := r.trySet(m, time.Now())
		if done {
			return err
		}
	}
}

// trySet is set. It reports false if it has freed expired messages and must be called again.
func (r *retained) trySet(m *Message, now time.Time) (done bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.byTopic[m.Topic]
	size := 2*overhead + m.size()
	messages, bytes := len(r.inOrder)+1, r.bytes+size
	if old != nil {
		messages, bytes = messages-1, bytes-old.size
	}
	isEmpty := len(m.Payload) == 0
	isOver := !isEmpty && (messages > r.messages || bytes > r.most)
	if isOver && r.sweepLocked(now) {
		return false, nil
	}
	r.remove(old)
	switch {
	case isEmpty:
		return true, nil
	case isOver:
		return true, ErrNotRetained
	}
	r.insert(&kept{message: m, size: size})
	return true, nil
}

func (r *retained) insert(k *kept) {
	topic := k.message.Topic
	r.byTopic[topic] = k
	r.inOrder = slices.Insert(r.inOrder, r.place(topic), k)
	r.bytes += k.size
	if !k.message.Expires.IsZero() {
		heap.Push(&r.expiring, k)
	}
}

func (r *retained) remove(k *kept) {
	if k == nil {
		return
	}
	topic := k.message.Topic
	delete(r.byTopic, topic)
	at := r.place(topic)
	r.inOrder = slices.Delete(r.inOrder, at, at+1)
	r.bytes -= k.size
	if !k.message.Expires.IsZero() {
		heap.Remove(&r.expiring, k.at)
	}
	if len(r.inOrder) == 0 { // free the memory of their largest size
		r.byTopic, r.inOrder, r.expiring = make(map[string]*kept), nil, nil
	}
}

// place returns the index of a topic in the order, or the index at which it would be.
func (r *retained) place(topic string) int {
	return sort.Search(len(r.inOrder), func(i int) bool { return r.inOrder[i].message.Topic >= topic })
}

// sweep frees some expired messages, and reports whether there were any.
func (r *retained) sweep(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sweepLocked(now)
}

// sweepLocked removes a few messages at most: each removal moves all messages behind it.
func (r *retained) sweepLocked(now time.Time) (any bool) {
	for range 8 {
		if len(r.expiring) == 0 || !r.expiring[0].message.isOver(now) {
			break
		}
		r.remove(r.expiring[0])
		any = true
	}
	return any
}

func (r *retained) usage() (messages int, bytes int64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.inOrder), r.bytes
}

// isCurrent reports whether a message is still retained.
func (r *retained) isCurrent(m *Message) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.byTopic[m.Topic]
	return k != nil && k.message == m
}

// each calls use for each message that matches a filter, without the lock.
func (r *retained) each(filter string, steps *steps, use func(*Message)) {
	if !isWildcard(filter) {
		r.mu.RLock()
		k := r.byTopic[filter]
		r.mu.RUnlock()
		if k != nil {
			use(k.message)
		}
		return
	}
	prefix := filter[:strings.IndexAny(filter, "+#")]
	prefix = strings.TrimSuffix(prefix, "/") // a/# matches a
	var found []*Message
	for after, more := "", true; more; {
		found, after, more = r.some(filter, prefix, after, found[:0])
		steps.add(sliceSize)
		for _, m := range found {
			use(m)
			steps.add(offerSteps)
		}
	}
}

// some appends messages that match a filter, with topics that begin with prefix and come after a
// given one. It takes a bounded number of steps, and returns where it stopped.
func (r *retained) some(filter, prefix, after string, found []*Message) (_ []*Message, last string, more bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := r.place(max(prefix, after))
	if after != "" && at < len(r.inOrder) && r.inOrder[at].message.Topic == after {
		at++
	}
	for range sliceSize {
		if at == len(r.inOrder) || !strings.HasPrefix(r.inOrder[at].message.Topic, prefix) {
			return found, "", false
		}
		m := r.inOrder[at].message
		if match(filter, m.Topic) {
			found = append(found, m)
		}
		after = m.Topic
		at++
	}
	return found, after, true
}

// SendRetained queues the retained messages that match a subscription, according to its Retain
// Handling; existed is what Subscribe returned. A shared subscription gets none [MQTT-4.8.2].
func (s *Session) SendRetained(asked Subscription, existed bool, pause func()) {
	r := s.broker.retained
	if r == nil || isShared(asked.Filter) || asked.RetainHandling > 1 || asked.RetainHandling == 1 && existed {
		return
	}
	f := form{retain: true}
	if asked.Identifier > 0 {
		f.identifiers = []int{asked.Identifier}
	}
	r.each(asked.Filter, &steps{pause: pause}, func(m *Message) {
		if m.isOver(time.Now()) || asked.NoLocal && m.Publisher == s.client {
			return
		}
		f.qos = min(m.QoS, asked.QoS, 1)
		// The subscription has already got a message that was published since, and must not get an
		// older one after it.
		s.offer(m, f, false, func() bool { return r.isCurrent(m) })
	})
}
