package activity

// node is an element of a list, and part of what it orders.
type node[T any] struct {
	value          T
	in             *list[T]
	next, previous *node[T]
}

// list orders nodes by their last use; the latest is in front. A node is in one list at most.
type list[T any] struct {
	first, last *node[T]
	count       int
}

// use puts a node in front of the list, and takes it out of the one in which it was.
func (l *list[T]) use(n *node[T]) {
	if l.first == n {
		return
	}
	n.leave()
	n.in, n.next = l, l.first
	if l.first == nil {
		l.last = n
	} else {
		l.first.previous = n
	}
	l.first = n
	l.count++
}

// leave takes the node out of its list, if it is in one.
func (n *node[T]) leave() {
	l := n.in
	if l == nil {
		return
	}
	if n.previous == nil {
		l.first = n.next
	} else {
		n.previous.next = n.next
	}
	if n.next == nil {
		l.last = n.previous
	} else {
		n.next.previous = n.previous
	}
	n.in, n.next, n.previous = nil, nil, nil
	l.count--
}
