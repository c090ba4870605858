package attach

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// hears lets a store hear messages, and returns its reaction to the last. One that was replayed begins with "*".
func (p *presence) hears(messages ...string) (last reaction) {
	for _, message := range messages {
		text, replayed := strings.CutPrefix(message, "*")
		last = p.hear(text, replayed)
	}
	return last
}

// The journal decides which of the stores that share it answers.
func TestWhatAStoreDoesAboutOthersOnItsBroker(t *testing.T) {
	alone := func(stage stage) presence { return presence{me: "me", stage: stage} }
	sharing := func(stage stage) presence {
		return presence{me: "me.g", data: ".g", shared: true, stage: stage, memory: presenceMemory{served: stage == answering}}
	}
	for _, test := range []struct {
		name  string
		store presence
		heard []string
		want  reaction // to the last
		free  bool     // afterwards
	}{
		{"its own claim comes back", alone(claiming), []string{"claims me"}, ignore, true},
		{"its own claim of an earlier connection is replayed", alone(claiming), []string{"*claims me"}, ignore, false},
		{"another claimed first", alone(claiming), []string{"claims b"}, yield, false},
		{"another claims later", alone(claimed), []string{"claims b"}, saysFirst, true},
		{"another claims, and a third was before both", alone(claiming), []string{"*claims a", "claims me", "claims b"}, ignore, false},
		{"another was first", alone(claimed), []string{"first a"}, yield, false},
		{"another answers", alone(claimed), []string{"answers a"}, yield, false},
		{"another is said to answer", alone(claiming), []string{"*answers a", "claims me"}, ignore, false},
		{"the one that is said to answer is gone", alone(claiming), []string{"*answers a", "claims me", "gone a"}, saysFirst, true},
		{"the one that is said to answer is gone before", alone(claiming), []string{"*answers a", "gone a", "claims me"}, ignore, true},
		{"a third is gone", alone(claiming), []string{"*answers a", "claims me", "gone b"}, ignore, false},
		{"the last one is gone", alone(claiming), []string{"*gone a", "claims me"}, ignore, true},
		{"another store asks", alone(answering), []string{"claims b"}, saysAnswers, false},
		{"another store says that it was first", alone(answering), []string{"first b"}, saysAnswers, false},
		{"another store is gone, and that is what is retained now", alone(answering), []string{"gone b"}, saysAnswers, false},
		{"someone has taken over", alone(answering), []string{"answers b"}, yield, false},
		{"after it gave way, nothing matters", alone(answering), []string{"answers b", "claims c"}, ignore, false},
		{"another was the store before us, ever", alone(claiming), []string{"*answers z", "gone z", "claims me"}, ignore, true},
		{"the message was deleted", alone(answering), []string{""}, ignore, false},

		{"the one before is silent", sharing(claiming), []string{"*answers a.g", "claims me.g"}, ignore, true},
		{"the one before announces again", sharing(claiming), []string{"*answers a.g", "answers a.g", "claims me.g"}, ignore, true},
		{"the next one claims", sharing(answering), []string{"claims b.g"}, ignore, false},
		{"the next one answers", sharing(answering), []string{"answers b.g"}, ignore, false},
		{"the one before is gone, and that is what is retained now", sharing(answering), []string{"gone a.g"}, saysAnswers, false},
		{"the one before was gone while this one was away", sharing(answering), []string{"*gone a.g"}, ignore, false},
		{"a store with other data answers", sharing(answering), []string{"answers b.h"}, yield, false},
		{"a store with other data claims", sharing(claimed), []string{"claims b.h"}, saysFirst, true},
		{"a store with other data is silent", sharing(claiming), []string{"*answers b", "claims me.g"}, ignore, false},
	} {
		p := test.store
		if got := p.hears(test.heard...); got != test.want || p.free() != test.free {
			t.Errorf("%s: %q, free %v; want %q, %v", test.name, got, p.free(), test.want, test.free)
		}
	}
}

// A store that goes on with its data must be the last one that has answered, or one with the same data.
func TestWhatAStoreWithDataDoesAboutOthersThatHaveAnsweredSince(t *testing.T) {
	withData := func(continues, served bool) presence {
		return presence{me: "me.d", data: ".d", continues: continues, memory: presenceMemory{served: served}}
	}
	for _, test := range []struct {
		name     string
		store    presence
		heard    string
		want     reaction
		departed string
	}{
		{"the store before it was itself", withData(true, false), "*gone x.d", ignore, "me.d"},
		{"itself was killed", withData(true, false), "*answers x.d", ignore, "me.d"},
		{"another has answered", withData(true, false), "*gone x.e", yield, "x.e"},
		{"another answers", withData(true, false), "*answers x.e", yield, "x.e"},
		{"another in memory has answered", withData(true, false), "*gone x", yield, "x"},
		{"another has only claimed", withData(true, false), "*claims x", ignore, "me.d"},
		{"another has answered, and this one begins empty", withData(false, false), "*gone x", ignore, "me.d"},
		{"another has answered while it was disconnected", withData(true, true), "*gone x", yield, "me.d"},
		{"another is gone now", withData(true, false), "gone x", ignore, "me.d"},
	} {
		p := test.store
		if got := p.hears(test.heard); got != test.want || p.departed() != test.departed {
			t.Errorf("%s: %q, says that %s is gone; want %q, %s", test.name, got, p.departed(), test.want, test.departed)
		}
	}
}

func TestAStoreThatWasAwayYieldsToOneThatServedMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name     string
		first    string // what was retained when it connected for the first time
		replayed string // and when it came back
		want     reaction
	}{
		{"nothing happened", "", "gone me", ignore},
		{"it could not say that it leaves", "", "answers me", ignore},
		{"the broker forgot", "", "", ignore},
		{"another serves", "", "answers b", yield},
		{"another has served", "", "gone b", yield},
		{"another claims, and will be told", "", "claims b", ignore},
		{"another thinks that it was first, and will be told", "", "first b", ignore},
		{"the broker tells what was retained before", "gone a", "gone a", ignore},
		{"the one before has served again", "gone a", "gone b", yield},
	} {
		first := presence{me: "me"}
		if got := first.hears("*"+test.first, "claims me"); got != ignore || !first.answer() {
			t.Fatalf("%s: it is not the store", test.name)
		}
		again := presence{me: "me", memory: first.memory}
		if got := again.hears("*" + test.replayed); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if got, want := again.retained(), test.replayed != "answers b"; got != want {
			t.Errorf("%s: its claim may be retained: %v, want %v", test.name, got, want)
		}
		// If its Will was published, the broker lived on.
		if got, want := again.survived, test.replayed == "gone me"; got != want {
			t.Errorf("%s: the broker survived: %v, want %v", test.name, got, want)
		}
	}
}

// A broker in which messages wait for any time, in order, is stepped through in random
// order: subscribe, claim, and each delivery. What one has to say it says at once.
func TestOfStoresInAnyOrderExactlyOneIsFree(t *testing.T) {
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 0))
		var all [4]struct {
			presence
			step  int      // 0: to subscribe, 1: to claim, 2: done
			inbox []string // what was retained begins with "*"
		}
		retained := ""
		publish := func(text string) {
			retained = text
			for i := range all {
				if all[i].step > 0 {
					all[i].inbox = append(all[i].inbox, text)
				}
			}
		}
		for moves := []func(){nil}; len(moves) > 0; {
			moves = nil
			for i := range all {
				s := &all[i]
				s.me = string(rune('a' + i))
				if s.stage != yielded && s.step == 0 {
					moves = append(moves, func() { s.step, s.inbox = 1, []string{"*" + retained} })
				} else if s.stage != yielded && s.step == 1 {
					moves = append(moves, func() { s.step = 2; publish(saysClaims + " " + s.me) })
				}
				if len(s.inbox) > 0 {
					moves = append(moves, func() {
						message := s.inbox[0]
						s.inbox = s.inbox[1:]
						if do := s.hears(message); do != ignore && do != yield {
							publish(string(do) + " " + s.me)
						}
					})
				}
			}
			if len(moves) > 0 {
				moves[random.IntN(len(moves))]()
			}
		}
		free := 0
		for i := range all {
			if all[i].free() {
				free++
			}
		}
		if free != 1 {
			t.Fatalf("seed %d: %d stores are free: %+v", seed, free, all)
		}
	}
}
