package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

const resource = "press-7/controller"

// at returns the token of a tenure that began at a wall clock.
func at(wall int64) hlc.Token { return hlc.Token{Wall: wall, Node: "StateStore"} }

// checkerOptions are the arguments of NewChecker beside the resource.
type checkerOptions struct {
	Highest hlc.Token
	Persist func(ctx context.Context, token hlc.Token) error
}

func newChecker(t *testing.T, options checkerOptions) *fencing.Checker {
	t.Helper()
	checker, err := fencing.NewChecker(resource, options.Highest, options.Persist)
	if err != nil {
		t.Fatal(err)
	}
	return checker
}

// doors are the two methods that admit a token.
var doors = []struct {
	name string
	pass func(ctx context.Context, c *fencing.Checker, token hlc.Token) error
}{
	{"Admit", func(ctx context.Context, c *fencing.Checker, token hlc.Token) error { return c.Admit(ctx, token) }},
	{"Do", func(ctx context.Context, c *fencing.Checker, token hlc.Token) error {
		ran := false
		err := c.Do(ctx, token, func() error { ran = true; return nil })
		if ran == errors.Is(err, fencing.ErrNotAdmitted) {
			return fmt.Errorf("the write ran: %v; the error: %w", ran, err)
		}
		return err
	}},
}

func TestInvariant13ACheckerAdmitsEqualOrNewerTokensAndRefusesOlder(t *testing.T) {
	token := func(text string) hlc.Token {
		t.Helper()
		parsed, err := hlc.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for _, door := range doors {
		t.Run(door.name, func(t *testing.T) {
			checker := newChecker(t, checkerOptions{Highest: token("1000:5:b")})
			for _, step := range []struct {
				token   string
				admit   bool
				highest string
			}{
				{"999:9:z", false, "1000:5:b"},
				{"1000:5:a", false, "1000:5:b"},
				{"1000:5:b", true, "1000:5:b"}, // equal
				{"1000:5:c", true, "1000:5:c"}, // by node
				{"1000:5:b", false, "1000:5:c"},
				{"1000:10:a", true, "1000:10:a"}, // by counter, as integers (invariant 16)
				{"1000:9:z", false, "1000:10:a"},
				{"10000:0:a", true, "10000:0:a"}, // by wall clock, as integers
				{"9999:0:z", false, "10000:0:a"},
			} {
				err := door.pass(t.Context(), checker, token(step.token))
				var stale *fencing.StaleTokenError
				switch {
				case step.admit && err != nil:
					t.Errorf("%s: %v", step.token, err)
				case !step.admit && !errors.As(err, &stale):
					t.Errorf("%s: %v, want a StaleTokenError", step.token, err)
				case !step.admit:
					want := fencing.StaleTokenError{Resource: resource, Token: token(step.token), Highest: token(step.highest)}
					if *stale != want {
						t.Errorf("%s: %+v, want %+v", step.token, *stale, want)
					}
					if !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(err, fencing.ErrNotAdmitted) || !errors.Is(err, transport.ErrFencingTokenLower) {
						t.Errorf("%s: %v does not match ErrStaleToken, ErrNotAdmitted and the store's refusal", step.token, err)
					}
				}
				if got := checker.Highest(); got != token(step.highest) {
					t.Errorf("%s: the highest is %v, want %s", step.token, got, step.highest)
				}
			}
		})
	}
}

func TestACheckerRefusesAnInvalidToken(t *testing.T) {
	for _, door := range doors {
		for _, test := range []struct {
			token hlc.Token
			want  error
		}{
			{hlc.Token{}, fencing.ErrMissingToken},
			{hlc.Token{Wall: 5}, hlc.ErrMalformed}, // no node
			{hlc.Token{Wall: -1, Node: "a"}, hlc.ErrMalformed},
			{hlc.Token{Wall: 5, Node: "a:b"}, hlc.ErrMalformed},
		} {
			checker := newChecker(t, checkerOptions{})
			err := door.pass(t.Context(), checker, test.token)
			if !errors.Is(err, test.want) || !errors.Is(err, fencing.ErrNotAdmitted) {
				t.Errorf("%s of %v: %v, want %v", door.name, test.token, err, test.want)
			}
			if got := checker.Highest(); !got.IsZero() {
				t.Errorf("%s of %v: it became the highest", door.name, test.token)
			}
		}
	}
}

func TestNewCheckerRefusesInvalidOptions(t *testing.T) {
	for _, test := range []struct {
		name, resource string
		highest        hlc.Token
		cause          string
	}{
		{"no name", "", hlc.Token{}, "the resource has no name"},
		{"a highest that is none", resource, hlc.Token{Wall: -1, Node: "a"}, "the highest token: hlc: malformed timestamp"},
	} {
		checker, err := fencing.NewChecker(test.resource, test.highest, nil)
		if checker != nil || err == nil || !strings.Contains(err.Error(), test.cause) {
			t.Errorf("%s: %v, %v; want an error with %q", test.name, checker, err, test.cause)
		}
	}
}

// A token may be durable even if Persist returned an error. The checker refuses at once what a
// restarted checker would refuse.
func TestATokenThatMayBeDurableKeepsLowerOnesOut(t *testing.T) {
	for _, door := range doors {
		full := errors.New("no space left")
		fail := true
		var persisted []int64
		checker := newChecker(t, checkerOptions{Highest: at(1), Persist: func(_ context.Context, token hlc.Token) error {
			persisted = append(persisted, token.Wall)
			if fail {
				return full
			}
			return nil
		}})
		try := func(wall int64, want error) {
			t.Helper()
			if err := door.pass(t.Context(), checker, at(wall)); !errors.Is(err, want) || want != nil && !errors.Is(err, fencing.ErrNotAdmitted) {
				t.Errorf("%s, %d: %v, want %v", door.name, wall, err, want)
			}
		}
		try(5, full)
		if got := checker.Highest(); got != at(1) {
			t.Errorf("the highest is %v, but 1 is the last that is known to be durable", got)
		}
		try(1, fencing.ErrStaleToken)
		try(4, fencing.ErrStaleToken)
		fail = false
		for _, wall := range []int64{5, 5, 6} { // the same may try again, and a newer
			try(wall, nil)
		}
		if want := []int64{5, 5, 6}; !slices.Equal(persisted, want) {
			t.Errorf("Persist was called for %v, want %v", persisted, want)
		}
	}
}

func TestAWriteThatFailsOrPanicsLeavesTheCheckerFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		checker := newChecker(t, checkerOptions{})
		broken := errors.New("broken pipe")
		err := checker.Do(ctx, at(1), func() error { return broken })
		if !errors.Is(err, broken) || errors.Is(err, fencing.ErrNotAdmitted) {
			t.Errorf("%v, want the error of the write", err)
		}
		func() {
			defer func() {
				if value := recover(); value != "boom" {
					t.Errorf("recovered %v", value)
				}
			}()
			_ = checker.Do(ctx, at(2), func() error { panic("boom") })
		}()
		for _, door := range doors {
			if err := door.pass(ctx, checker, at(2)); err != nil {
				t.Errorf("%s afterwards: %v", door.name, err)
			}
			if err := door.pass(ctx, checker, at(1)); !errors.Is(err, fencing.ErrStaleToken) {
				t.Errorf("%s of the older: %v", door.name, err)
			}
		}
	})
}

// With many writers, slow and failing disks, crashes after storing and before returning, and
// restarts, all writes are in the order of their tokens.
func TestWritesAreInTheOrderOfTheirTokensWhateverHappens(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			var disk hlc.Token // what survives
			var written []hlc.Token
			began := time.Now()
			for restart := range 4 {
				random := rand.New(rand.NewPCG(seed, uint64(restart)))
				var mu sync.Mutex // of random
				chance := func(n int) int {
					mu.Lock()
					defer mu.Unlock()
					return random.IntN(n)
				}
				ctx, crash := context.WithCancel(t.Context())
				checker := newChecker(t, checkerOptions{Highest: disk, Persist: func(ctx context.Context, token hlc.Token) error {
					if token.Compare(disk) < 0 {
						t.Errorf("seed %d: %v is stored over %v", seed, token, disk)
					}
					time.Sleep(time.Duration(chance(5)) * time.Millisecond)
					if ctx.Err() != nil || chance(4) == 0 {
						return errors.New("it was not stored")
					}
					disk = token
					if chance(4) == 0 {
						return errors.New("it was stored, but without a reply")
					}
					return nil
				}})
				var writers sync.WaitGroup
				for range 20 {
					writers.Go(func() {
						for ctx.Err() == nil {
							token := at(time.Since(began).Milliseconds()/10 + int64(chance(5)) + 1)
							_ = checker.Do(ctx, token, func() error {
								time.Sleep(time.Duration(chance(3)) * time.Millisecond)
								if token.Compare(disk) > 0 {
									t.Errorf("seed %d: %v writes, but %v is durable", seed, token, disk)
								}
								written = append(written, token)
								return nil
							})
							time.Sleep(time.Duration(chance(10)) * time.Millisecond)
						}
					})
				}
				time.Sleep(100 * time.Millisecond)
				crash()
				await.Done(writers.Wait)
			}
			if !slices.IsSortedFunc(written, hlc.Token.Compare) {
				t.Errorf("seed %d: written out of order: %v", seed, written)
			}
			if len(written) < 50 || written[0] == written[len(written)-1] {
				t.Errorf("seed %d: only %d writes, %v", seed, len(written), written)
			}
		})
	}
}
