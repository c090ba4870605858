package election

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Why a switchover did not come to its end.
var (
	// ErrNoLeader: no node leads, so none can hand over.
	ErrNoLeader = errors.New("no node leads")
	// ErrSwitchoverRefused: the leader has Options.RefuseSwitchover.
	ErrSwitchoverRefused = errors.New("the leader refuses to hand over")
	// ErrNoCandidate: no candidate, or not the one asked for, said that it is ready, so the
	// leader leads on.
	ErrNoCandidate = errors.New("no such candidate is ready to lead")
	// ErrNotHandedOver: a candidate is ready, and the leader did not hand over in time.
	ErrNotHandedOver = errors.New("the leader did not hand over in time")
	// ErrOtherLeads: the leader handed over, and another node leads than the one asked for.
	ErrOtherLeads = errors.New("another candidate took over")
)

// The states of a switchover. Each is written by another: the one that asks, a candidate that
// campaigns and is healthy, a leader that does not obey.
const (
	switchoverAsked   = "asked"
	switchoverReady   = "ready"
	switchoverRefused = "refused"
)

// switchover is what the key of requests holds during a switchover. It names the tenure that is to
// end, so it has no effect on any other, however late it is read.
type switchover struct {
	clientID string // which wrote it; a strict store wants that first, for keys under lock prefixes
	state    string
	tenure   string // the value of the lease's key
	to       string // the holder that is to lead; empty: any other
}

// String encodes what follows the client id without a colon, which a strict store wants too.
func (r switchover) String() string {
	return r.clientID + ":" + url.Values{"state": {r.state}, "tenure": {r.tenure}, "to": {r.to}}.Encode()
}

// parseSwitchover reads the value of the key. Any client may have written it.
func parseSwitchover(entry transport.Entry) (r switchover, ok bool) {
	value := string(entry.Value)
	colon := strings.LastIndexByte(value, ':')
	if !entry.Exists || colon < 0 {
		return switchover{}, false
	}
	values, err := url.ParseQuery(value[colon+1:])
	r = switchover{value[:colon], values.Get("state"), values.Get("tenure"), values.Get("to")}
	return r, err == nil && (r.state == switchoverAsked || r.state == switchoverReady || r.state == switchoverRefused)
}

// Switched is how a switchover ended.
type Switched struct {
	// From is the leader that was asked; To is the leader now, and not Held if none leads.
	From, To lease.Holder
	// Gap is for how long no node led, as notifications showed it to this client.
	Gap time.Duration
}

const (
	// askEvery is how often a switchover asks again, in case a message was lost.
	askEvery = time.Second
	// askedFor is how long a request stands when the client that asked is gone.
	askedFor = 3 * askEvery
)

// Switchover asks the leader of an election, wherever it runs, to drain and hand over to the candidate that
// holds under the name to, or to any other if to is empty. It returns when another tenure has begun, when the
// leader refuses, or when ctx ends: give ctx a deadline that is longer than the leader drains. The
// leader hands over only when a candidate has said that it is ready, so a name that is not there costs
// no time without a leader. If to leads already, nothing happens.
//
// The client needs the right to write the key "<name>/bid", as the candidates do. The error matches one of
// the errors above, and the cause of ctx if that ended. Switched says which node leads in any case.
func Switchover(ctx context.Context, client *transport.Client, name, to string) (Switched, error) {
	l, err := lease.New(client, name, lease.Options{})
	if err != nil {
		return Switched{}, fmt.Errorf("election: %w", err)
	}
	from, err := l.Holder(ctx)
	if err != nil {
		return Switched{}, fmt.Errorf("election: %w", err)
	}
	s := &asking{lease: l, client: client, Switched: Switched{From: from, To: from},
		request: switchover{client.ClientID(), switchoverAsked, from.Value, to}}
	switch {
	case !from.Held:
		err = ErrNoLeader
	case from.Name == to:
		return s.Switched, nil
	default:
		err = s.run(ctx)
	}
	return s.Switched, operror.New("election: switchover of", name, err)
}

// asking is one call of Switchover.
type asking struct {
	Switched
	lease   *lease.Lease
	client  *transport.Client
	request switchover
	heard   switchover // the latest answer
	heardAt time.Time
	freeAt  time.Time // when the lease was free; zero: it was not
}

func (s *asking) key() string { return s.lease.Name() + protocol.FailBackSuffix }

func (s *asking) run(ctx context.Context) error {
	holders, err := s.client.Watch(s.lease.Name())
	if err != nil {
		return operror.Inner(err)
	}
	defer holders.Close()
	answers, err := s.client.Watch(s.key())
	if err != nil {
		return operror.Inner(err)
	}
	defer answers.Close()
	defer s.withdraw(context.WithoutCancel(ctx))
	again := time.NewTicker(askEvery)
	defer again.Stop()
	if err := s.ask(ctx); err != nil {
		return err
	}
	for {
		look := false
		select {
		case <-ctx.Done():
			return s.gaveUp(context.Cause(ctx))
		case <-again.C:
			look = true
			if s.freeAt.IsZero() && time.Since(s.heardAt) > askEvery {
				if err := s.ask(ctx); err != nil {
					return err
				}
			}
		case change, open := <-holders.Changes():
			if !open {
				return operror.Inner(holders.Err())
			}
			if !change.Exists && s.freeAt.IsZero() {
				s.freeAt = time.Now()
			}
			look = change.Exists && string(change.Value) != s.From.Value
		case change, open := <-answers.Changes():
			if !open {
				return operror.Inner(answers.Err())
			}
			answer, ok := parseSwitchover(change.Entry)
			if !ok || answer.tenure != s.From.Value || answer.state == switchoverAsked {
				continue
			}
			s.heard, s.heardAt = answer, time.Now()
			if answer.state == switchoverRefused {
				return ErrSwitchoverRefused
			}
		}
		if look && s.look(ctx) {
			if s.request.to != "" && s.To.Name != s.request.to {
				return fmt.Errorf("%w: %q leads", ErrOtherLeads, s.To.Name)
			}
			return nil
		}
	}
}

// look asks the store which node leads, and reports whether another tenure has begun.
func (s *asking) look(ctx context.Context) bool {
	began := time.Now()
	holder, err := s.lease.Holder(ctx)
	switch {
	case err != nil:
		return false // it is asked again soon
	case !holder.Held && s.freeAt.IsZero():
		s.freeAt = began
	case holder.Held && holder.Value != s.From.Value && !s.freeAt.IsZero():
		s.Gap = began.Sub(s.freeAt)
	}
	s.To = holder
	return holder.Held && holder.Value != s.From.Value
}

// ask writes the request. A refusal is returned; what can pass is tried again.
func (s *asking) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	_, err := s.client.Set(ctx, s.key(), []byte(s.request.String()), transport.SetOptions{TTL: askedFor})
	var refused *transport.RefusedError
	if errors.As(err, &refused) || errors.Is(err, transport.ErrNotAuthorized) {
		return err
	}
	return nil
}

// withdraw deletes the request, if it is still there.
func (s *asking) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	_, _ = s.client.VDel(ctx, s.key(), []byte(s.request.String()), transport.DelOptions{})
}

// gaveUp says how far a switchover came before the end of its context.
func (s *asking) gaveUp(cause error) error {
	switch {
	case !s.freeAt.IsZero():
		s.To = lease.Holder{}
		return fmt.Errorf("%w: %q handed over, and the next leader is not there yet: %w", ErrNoLeader, s.From.Name, cause)
	case s.heard.state == switchoverReady:
		return fmt.Errorf("%w: %q is ready, and %q still leads; is it draining, or is it no elector that obeys? (%w)",
			ErrNotHandedOver, s.heard.to, s.From.Name, cause)
	}
	return fmt.Errorf("%w: %q leads on (%w)", ErrNoCandidate, s.From.Name, cause)
}
