package testsupport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

// The lease of the candidates, and the keys that a leader writes: FencedKey through its guard
// and ControlKey without a token, to show what the guard prevents.
const (
	LeaseKey   = "press-7/active"
	FencedKey  = "press-7/setpoint"
	ControlKey = "press-7/control"
	LeaseTTL   = time.Second
)

// Candidate is a node that takes part in an election over MQTT. Each time it leads it writes
// its name to both keys and sends its term to Leads.
type Candidate struct {
	Name   string
	Client *transport.Client
	Leads  chan *election.Term
	// Withdraw ends the campaign and the term, if there is one. It does not wait for that.
	Withdraw context.CancelFunc
	// Resign ends the term, if there is one, and reports whether there was.
	Resign func() bool
}

// Campaign runs a candidate until the test ends.
func Campaign(t *testing.T, name, address string, keepAlive time.Duration) *Candidate {
	t.Helper()
	c := &Candidate{
		Name:   name,
		Client: Dial(t, address, transport.Options{ClientID: name, KeepAlive: keepAlive}),
		Leads:  make(chan *election.Term, 1),
	}
	elector, err := election.New(c.Client, LeaseKey, election.Options{TTL: LeaseTTL, Claim: []string{FencedKey}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, withdraw := context.WithCancel(context.Background())
	c.Withdraw, c.Resign = withdraw, elector.Resign
	ended := make(chan error, 1)
	go func() { ended <- elector.Run(ctx, c.lead) }()
	t.Cleanup(func() {
		withdraw()
		if err := await.Receive(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Run: %v", name, err)
		}
	})
	return c
}

func (c *Candidate) lead(ctx context.Context, term *election.Term) error {
	_, fenced := term.Guard().Set(ctx, FencedKey, []byte(c.Name))
	_, control := c.Client.Set(ctx, ControlKey, []byte(c.Name), transport.SetOptions{})
	if err := errors.Join(fenced, control); err != nil {
		return err
	}
	select {
	case c.Leads <- term:
	case <-ctx.Done():
	}
	await.Receive(ctx.Done())
	return nil
}

// MustLead waits until the candidate leads.
func (c *Candidate) MustLead(t *testing.T) *election.Term {
	t.Helper()
	return receive(t, c.Leads, c.Name+" never leads")
}

// TokenOf returns the fencing token of a term.
func TokenOf(t *testing.T, term *election.Term) hlc.Token {
	t.Helper()
	token, err := term.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
