package transport

import (
	"context"
	"time"
)

// Binding says when and to which store a request may go, such as to the one that granted a tenure, so that a
// store that replaced it does not apply the request. The zero Binding ties it to none.
type Binding struct {
	// Store is the identity of the store, as [Client.Store] returns it. Another store
	// refuses the request with [ErrOtherStore]. Empty: the store has no identity, like
	// those deployed today.
	Store string
	// Connection, if not nil, is a channel from [Client.Lost] or [Client.Unbroken]: the
	// request leaves over that connection, before the channel is closed, or not at all
	// (ErrNotSent).
	Connection <-chan struct{}
	// While, if not nil, bounds the request beside the context of the call, such as the
	// TokenContext of a tenure: when it ends, the request is given up with its cause. Its
	// deadline and its values are not used.
	While context.Context
	// Until, if not zero, is when the request is given up at the latest.
	Until time.Time
	// Urgent makes the request leave before all waiting requests of its client that are not
	// urgent. Leases use it for their own requests. It is for few and small requests.
	Urgent bool
}
