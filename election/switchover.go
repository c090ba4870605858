package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Why a switchover did not come to its end.
var (
	// ErrNoLeader: no node leads, so none can hand over.
	ErrNoLeader = errors.New("no node leads")
	// ErrOtherLeads: the leader handed over, and another node leads than the one asked for.
	ErrOtherLeads = errors.New("another candidate took over")
)

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
// holds under the name to, or to any other if to is empty. It returns when another tenure has begun, or when ctx
// ends: give ctx a deadline that is longer than the leader drains. The
// leader hands over only when a candidate has said that it is ready, so a name that is not there costs
// no time without a leader. If to leads already, nothing happens.
//
// The client needs the right to write the key "<name>/bid", as the candidates do. The error matches one of
// the errors above, or the cause of ctx if that ended. Switched says which node leads in any case.
func Switchover(ctx context.Context, client *transport.Client, name, to string) (Switched, error) {
	l, err := lease.New(client, name, lease.Options{})
	if err != nil {
		return Switched{}, fmt.Errorf("election: %w", err)
	}
	from, err := l.Holder(ctx)
	if err != nil {
		return Switched{}, fmt.Errorf("election: %w", err)
	}
	s := &switching{Switched: Switched{From: from, To: from}, lease: l, client: client, key: requestKey(name),
		request: request{clientID: client.ClientID(), state: asked, tenure: from.Value, to: to}}
	switch {
	case !from.Held:
		err = ErrNoLeader
	case from.Name != to:
		err = s.run(ctx)
	}
	return s.Switched, operror.New("election: switchover of", name, err)
}

// switching is one call of Switchover.
type switching struct {
	Switched
	lease   *lease.Lease
	client  *transport.Client
	key     string
	request request
}

func (s *switching) run(ctx context.Context) error {
	holders, err := s.client.Watch(s.lease.Name())
	if err != nil {
		return operror.Inner(err)
	}
	defer holders.Close()
	defer func() { // if it is still there
		options := transport.DelOptions{Binding: bounded(askEvery)}
		_, _ = s.client.VDel(context.WithoutCancel(ctx), s.key, []byte(s.request.String()), options)
	}()
	again := time.NewTicker(askEvery)
	defer again.Stop()
	stage := fmt.Sprintf("no such candidate is ready to lead, and %q leads on", s.From.Name)
	var freeAt time.Time // when the lease was free
	for err = s.ask(ctx); err == nil; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s (%w)", stage, context.Cause(ctx))
		case <-again.C:
			entry, _ := s.client.GetWith(ctx, s.key, bounded(askEvery)) // what fails is asked again soon
			switch answer := parseRequest(entry); {
			case !freeAt.IsZero():
			case answer.tenure != s.From.Value || answer.state == asked:
				err = s.ask(ctx)
			default:
				stage = fmt.Sprintf("%q is ready, and %q still leads; is it draining, or is it no elector that obeys?",
					answer.to, s.From.Name)
			}
		case change, open := <-holders.Changes():
			if !open {
				return operror.Inner(holders.Err())
			}
			if !change.Exists && freeAt.IsZero() {
				freeAt = time.Now()
				s.To, stage = lease.Holder{}, fmt.Sprintf("%q handed over, and the next leader is not there yet", s.From.Name)
			}
		}
		if !s.another(ctx, freeAt) {
			continue
		}
		if s.request.to != "" && s.To.Name != s.request.to {
			return fmt.Errorf("%w: %q leads", ErrOtherLeads, s.To.Name)
		}
		return nil
	}
	return err
}

// another asks the store whether another tenure has begun, and notes which. What fails is asked again soon.
func (s *switching) another(ctx context.Context, freeAt time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	began := time.Now()
	holder, err := s.lease.Holder(ctx)
	if err != nil || !holder.Held || holder.Value == s.From.Value {
		return false
	}
	if s.To = holder; !freeAt.IsZero() {
		s.Gap = began.Sub(freeAt)
	}
	return true
}

// ask writes the request. A refusal is returned; what can pass is tried again.
func (s *switching) ask(ctx context.Context) error {
	_, err := s.client.Set(ctx, s.key, []byte(s.request.String()),
		transport.SetOptions{TTL: askedFor, Binding: bounded(askEvery)})
	var refused *transport.RefusedError
	if errors.As(err, &refused) || errors.Is(err, transport.ErrNotAuthorized) {
		return err
	}
	return nil
}
