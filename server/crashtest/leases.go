package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// contest is one lease for which several clients contend, and one key that the holder writes
// under its token.
type contest struct {
	recorder *recorder
	name     string // of the lease
	guarded  string // the key
	ttl      time.Duration

	mu      sync.Mutex
	tenures []*holding // that may not be over
	former  []hlc.Token
	highest hlc.Token       // of all tenures
	floor   stamp           // the highest write that is known to be done
	crashes []time.Duration // when they were over
}

// holding is one tenure.
type holding struct {
	tenure *lease.Tenure
	client string
	token  hlc.Token
	// outlived is how many crashes there were when the store was last seen to have it.
	outlived int
}

// stamp is what the holder writes: its token, and a number that rises within the tenure.
type stamp struct {
	token hlc.Token
	n     int
}

func (s stamp) String() string { return s.token.String() + "#" + strconv.Itoa(s.n) }

func (s stamp) before(t stamp) bool {
	if c := s.token.Compare(t.token); c != 0 {
		return c < 0
	}
	return s.n < t.n
}

func parseStamp(text string) (stamp, error) {
	token, number, _ := strings.Cut(text, "#")
	n, err := strconv.Atoi(number)
	if err != nil {
		return stamp{}, err
	}
	parsed, err := hlc.ParseToken(token)
	return stamp{parsed, n}, err
}

func newContest(r *recorder, n int, ttl time.Duration) *contest {
	return &contest{recorder: r, name: fmt.Sprintf("lease/%d", n), guarded: fmt.Sprintf("guarded/%d", n), ttl: ttl}
}

// contend acquires the lease, works under it and releases it, again and again until ctx ends.
func (c *contest) contend(ctx context.Context, s *session, random *rand.Rand) {
	// The clock of the run is virtual in a synctest bubble; the monotonic clock of the system is not.
	l, err := lease.New(s.Client, c.name, lease.Options{TTL: c.ttl, Clock: c.recorder.now})
	if err != nil {
		c.recorder.violated(OnlyKnownErrors, "lease.New: %v", err)
		return
	}
	for ctx.Err() == nil {
		tenure, err := l.Acquire(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) {
				c.recorder.violated(OnlyKnownErrors, "acquire: %v", err)
			}
			return
		}
		c.hold(ctx, s, tenure, random)
		sleep.For(ctx, time.Duration(random.IntN(50))*time.Millisecond)
	}
}

// hold works under a tenure and ends it.
func (c *contest) hold(ctx context.Context, s *session, tenure *lease.Tenure, random *rand.Rand) {
	defer c.release(tenure)
	h, ok := c.begin(s, tenure)
	if !ok {
		return
	}
	guard := fencing.NewGuard(s.Client, tenure)
	lasts := c.ttl / 8
	if random.IntN(4) == 0 {
		lasts = 2 * c.ttl // to be renewed several times, also over a crash
	}
	until := time.NewTimer(time.Duration(random.Int64N(int64(lasts))))
	defer until.Stop()
	for n := 1; ; n++ {
		c.recorder.await(ctx, turnOfAll)
		c.write(tenure.TokenContext(), guard, stamp{h.token, n})
		c.look(h)
		pause := time.NewTimer(time.Duration(1+random.IntN(20)) * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-tenure.Context().Done():
			pause.Stop()
			c.ended(h)
			return
		case <-until.C:
			pause.Stop()
			// As if the process stood still, the lease runs out. That is rare: each restart gives
			// it its whole lifetime again, so it can take many crashes.
			if random.IntN(16) == 0 {
				tenure.StopRenewing()
				for context.Cause(tenure.Context()) == nil && ctx.Err() == nil {
					c.look(h)
					sleep.For(ctx, c.ttl/20)
				}
			}
			return
		case <-pause.C:
		}
	}
}

func (c *contest) release(tenure *lease.Tenure) {
	ctx, cancel := context.WithTimeout(context.Background(), c.ttl)
	defer cancel()
	_ = tenure.Release(ctx) // or it expires
}

// begin notes a new tenure.
func (c *contest) begin(s *session, tenure *lease.Tenure) (*holding, bool) {
	token, err := tenure.Token()
	if err != nil {
		return nil, false // it is over already
	}
	h := &holding{tenure: tenure, client: s.ClientID(), token: token}
	c.mu.Lock()
	h.outlived = len(c.crashes)
	before := c.highest
	c.highest = higher(c.highest, token)
	c.tenures = append(slices.DeleteFunc(c.tenures, func(h *holding) bool { return context.Cause(h.tenure.Context()) != nil }), h)
	c.former = append(c.former[max(0, len(c.former)-8):], token)
	c.mu.Unlock()
	c.recorder.count(Tenures, 1)
	if token.Compare(before) <= 0 {
		c.recorder.violated(OneHolder, "%s: %s got the token %v after %v", c.name, h.client, token, before)
	}
	c.look(h)
	return h, true
}

// look checks that no other tenure holds while h does.
func (c *contest) look(h *holding) {
	if _, err := h.tenure.Token(); err != nil {
		return
	}
	deadline := c.recorder.now() + h.tenure.Remaining()
	c.mu.Lock()
	others := slices.Clone(c.tenures)
	c.livesLocked(h, deadline-c.ttl) // the deadline is less than the TTL after the latest renewal
	c.mu.Unlock()
	for _, other := range others {
		if other == h {
			continue
		}
		_, err := other.tenure.Token()
		if _, mine := h.tenure.Token(); err == nil && mine == nil {
			c.recorder.violated(OneHolder, "%s: %s holds with token %v, and %s with token %v",
				c.name, h.client, h.token, other.client, other.token)
		}
	}
}

// livesLocked notes that the store had the tenure at a time: it outlived the crashes before.
func (c *contest) livesLocked(h *holding, at time.Duration) {
	for h.outlived < len(c.crashes) && at > c.crashes[h.outlived] {
		h.outlived++
		c.recorder.count(Outlived, 1)
	}
}

// ended checks why a tenure ended that its holder did not end.
func (c *contest) ended(h *holding) {
	cause := context.Cause(h.tenure.Context())
	if errors.Is(cause, lease.ErrDeadlinePassed) || errors.Is(cause, transport.ErrClosed) {
		return
	}
	c.recorder.violated(LeasesLast, "%s: the tenure of %s with token %v ended: %v", c.name, h.client, h.token, cause)
}

// write writes under the tenure.
func (c *contest) write(ctx context.Context, guard *fencing.Guard, what stamp) {
	c.mu.Lock()
	before := c.floor
	c.mu.Unlock()
	if _, err := guard.Set(ctx, c.guarded, []byte(what.String())); err != nil {
		return // if the token was refused, the tenure has ended, and ended sees why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorder.count(GuardedWrites, 1)
	if what.token.Compare(before.token) < 0 {
		c.recorder.violated(FencesHold, "%s: %v was written after %v", c.guarded, what, before)
	}
	if c.floor.before(what) {
		c.floor = what
	}
}

// intrude writes with the token of a former tenure, which must be refused.
func (c *contest) intrude(ctx context.Context, s *session, random *rand.Rand) {
	c.mu.Lock()
	floor := c.floor
	var token hlc.Token
	if len(c.former) > 0 {
		token = c.former[random.IntN(len(c.former))]
	}
	c.mu.Unlock()
	if token.IsZero() || token.Compare(floor.token) >= 0 {
		return
	}
	o := s.do(ctx, Operation{Kind: Set, Key: c.guarded, Value: stamp{token, 1 << 30}.String(), Token: token})
	switch o.Result {
	case LowerToken:
		c.recorder.count(StaleWrites, 1)
	case Unknown, notSent:
	default:
		c.recorder.violated(FencesHold, "%v, after %v was written", o, floor)
	}
}

// audit reads the guarded key. It returns false if there is no reply.
func (c *contest) audit(ctx context.Context, s *session) bool {
	c.mu.Lock()
	floor := c.floor
	c.mu.Unlock()
	o := s.do(ctx, Operation{Kind: Get, Key: c.guarded})
	if o.Result != Done && o.Result != Absent {
		return false
	}
	if o.Result == Absent && floor.n == 0 {
		return true
	}
	found, err := parseStamp(o.Read)
	if err != nil || o.Result == Absent || found.before(floor) {
		c.recorder.violated(WritesSurvive, "%v; %v was known to be written", o, floor)
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.floor.before(found) {
		c.floor = found
	}
	return true
}

// probe reads the key of the lease. While a tenure lasts, its key must be there.
func (c *contest) probe(ctx context.Context, s *session) {
	c.mu.Lock()
	var h *holding
	if len(c.tenures) > 0 {
		h = c.tenures[len(c.tenures)-1]
	}
	c.mu.Unlock()
	if h == nil || context.Cause(h.tenure.Context()) != nil {
		return
	}
	o := s.do(ctx, Operation{Kind: Get, Key: c.name})
	if o.Result != Done && o.Result != Absent || context.Cause(h.tenure.Context()) != nil {
		return
	}
	left := h.tenure.Remaining()
	if left <= 0 {
		return
	}
	if o.Result == Absent || !strings.HasPrefix(o.Read, h.client+":") {
		c.recorder.violated(LeasesLast, "%v; %s holds it for another %v", o, h.client, left)
		return
	}
	c.recorder.count(Probes, 1)
	c.mu.Lock()
	c.livesLocked(h, o.Call)
	c.mu.Unlock()
}

func (c *contest) restarted(restart Restart) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crashes = append(c.crashes, restart.Ready)
}
