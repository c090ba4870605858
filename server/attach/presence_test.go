package attach

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestWhatAStoreDoesAboutOthersOnItsBroker(t *testing.T) {
	for _, test := range []struct {
		name  string
		stage stage
		heard []string // a message that was replayed begins with "*"
		want  reaction // to the last
		free  bool     // afterwards
	}{
		{"its own claim comes back", claiming, []string{"claims me"}, ignore, true},
		{"its own claim of an earlier connection is replayed", claiming, []string{"*claims me"}, ignore, false},
		{"another claimed first", claiming, []string{"claims b"}, yield, false},
		{"another claims later", claimed, []string{"claims b"}, insist, true},
		{"another claims, and a third was before both", claiming, []string{"*claims a", "claims me", "claims b"}, ignore, false},
		{"another was first", claimed, []string{"first a"}, yield, false},
		{"another answers", claimed, []string{"answers a"}, yield, false},
		{"another is said to answer", claiming, []string{"*answers a", "claims me"}, ignore, false},
		{"the one that is said to answer is gone", claiming, []string{"*answers a", "claims me", "gone a"}, insist, true},
		{"the one that is said to answer is gone before", claiming, []string{"*answers a", "gone a", "claims me"}, ignore, true},
		{"a third is gone", claiming, []string{"*answers a", "claims me", "gone b"}, ignore, false},
		{"the last one is gone", claiming, []string{"*gone a", "claims me"}, ignore, true},
		{"another store asks", answering, []string{"claims b"}, insist, false},
		{"another store says that it was first", answering, []string{"first b"}, insist, false},
		{"another store is gone, and that is what is retained now", answering, []string{"gone b"}, insist, false},
		{"someone has taken over", answering, []string{"answers b"}, yield, false},
		{"after it gave way, nothing matters", answering, []string{"answers b", "claims c"}, ignore, false},
		{"another was the store before us, ever", claiming, []string{"*answers z", "gone z", "claims me"}, ignore, true},
		{"the message was deleted", answering, []string{""}, ignore, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := presence{me: "me", stage: test.stage}
			var got reaction
			for _, text := range test.heard {
				replayed := text != "" && text[0] == '*'
				if replayed {
					text = text[1:]
				}
				got = p.hear(text, replayed)
			}
			if got != test.want || p.free() != test.free {
				t.Errorf("%d, free %v; want %d, %v", got, p.free(), test.want, test.free)
			}
		})
	}
}

// A store that goes on with its data must be the last one that has answered, or one with the same data.
func TestWhatAStoreWithDataDoesAboutOthersThatHaveAnsweredSince(t *testing.T) {
	for _, test := range []struct {
		name      string
		continues bool
		served    bool // by this process
		heard     string
		want      reaction
		farewell  string
	}{
		{"the store before it was itself", true, false, "*gone x.d", ignore, "me.d"},
		{"itself was killed", true, false, "*answers x.d", ignore, "me.d"},
		{"another has answered", true, false, "*gone x.e", yield, "x.e"},
		{"another answers", true, false, "*answers x.e", yield, "x.e"},
		{"another in memory has answered", true, false, "*gone x", yield, "x"},
		{"another has only claimed", true, false, "*claims x", ignore, "me.d"},
		{"another has answered, and this one begins empty", false, false, "*gone x", ignore, "me.d"},
		{"another has answered while it was disconnected", true, true, "*gone x", yield, "me.d"},
		{"another is gone now", true, false, "gone x", ignore, "me.d"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := presence{me: "me.d", data: ".d", continues: test.continues, memory: presenceMemory{served: test.served}}
			text, replayed := strings.CutPrefix(test.heard, "*")
			if got := p.hear(text, replayed); got != test.want || p.farewell() != test.farewell {
				t.Errorf("%d, says that %s is gone; want %d, %s", got, p.farewell(), test.want, test.farewell)
			}
		})
	}
}

// The journal decides which of the stores that share it answers.
func TestWhatAStoreDoesAboutOthersThatShareItsData(t *testing.T) {
	for _, test := range []struct {
		name  string
		stage stage
		heard []string // a message that was replayed begins with "*"
		want  reaction // to the last
		free  bool     // afterwards
	}{
		{"the one before is silent", claiming, []string{"*answers a.g", "claims me.g"}, ignore, true},
		{"the one before insists", claiming, []string{"*answers a.g", "answers a.g", "claims me.g"}, ignore, true},
		{"the next one claims", answering, []string{"claims b.g"}, ignore, false},
		{"the next one answers", answering, []string{"answers b.g"}, ignore, false},
		{"the one before is gone, and that is what is retained now", answering, []string{"gone a.g"}, insist, false},
		{"the one before was gone while this one was away", answering, []string{"*gone a.g"}, ignore, false},
		{"a store with other data answers", answering, []string{"answers b.h"}, yield, false},
		{"a store with other data claims", claimed, []string{"claims b.h"}, insist, true},
		{"a store with other data is silent", claiming, []string{"*answers b", "claims me.g"}, ignore, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := presence{me: "me.g", data: ".g", shared: true, stage: test.stage, memory: presenceMemory{served: test.stage == answering}}
			var got reaction
			for _, text := range test.heard {
				text, replayed := strings.CutPrefix(text, "*")
				got = p.hear(text, replayed)
			}
			if got != test.want || p.free() != test.free {
				t.Errorf("%d, free %v; want %d, %v", got, p.free(), test.want, test.free)
			}
		})
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
		{"it could not say farewell", "", "answers me", ignore},
		{"the broker forgot", "", "", ignore},
		{"another serves", "", "answers b", yield},
		{"another has served", "", "gone b", yield},
		{"another claims, and will be told", "", "claims b", ignore},
		{"another thinks that it was first, and will be told", "", "first b", ignore},
		{"the broker tells what was retained before", "gone a", "gone a", ignore},
		{"the one before has served again", "gone a", "gone b", yield},
	} {
		t.Run(test.name, func(t *testing.T) {
			first := presence{me: "me"}
			if got := first.hear(test.first, true); got != ignore {
				t.Fatalf("to %q: %d", test.first, got)
			}
			first.hear("claims me", false)
			if !first.answer() {
				t.Fatal("it is not the store")
			}
			again := presence{me: "me", memory: first.memory}
			if got := again.hear(test.replayed, true); got != test.want {
				t.Errorf("to %q: %d, want %d", test.replayed, got, test.want)
			}
			if got, want := again.retained(), test.replayed != "answers b"; got != want {
				t.Errorf("its claim may be retained: %v, want %v", got, want)
			}
		})
	}
}

func TestAWillThatWasPublishedSaysThatTheBrokerLivedOn(t *testing.T) {
	for text, want := range map[string]bool{"gone me": true, "answers me": false, "gone b": false, "": false} {
		p := presence{me: "me"}
		p.hear(text, true)
		if p.survived != want {
			t.Errorf("after %q: %v, want %v", text, p.survived, want)
		}
	}
}

// A broker in which messages wait for any time, in order, is stepped through in random
// order: subscribe, claim, and each delivery. What one has to say it says at once.
func TestOfStoresInAnyOrderExactlyOneIsFree(t *testing.T) {
	const stores = 4
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 0))
		var (
			all        [stores]presence
			steps      [stores]int // 0: to subscribe, 1: to claim, 2: done
			subscribed [stores]bool
			inbox      [stores][]struct {
				text     string
				replayed bool
			}
			retained string
		)
		for i := range all {
			all[i].me = string(rune('a' + i))
		}
		publish := func(text string) {
			retained = text
			for i := range inbox {
				if subscribed[i] {
					inbox[i] = append(inbox[i], struct {
						text     string
						replayed bool
					}{text, false})
				}
			}
		}
		for {
			var moves []func()
			for i := range all {
				switch {
				case all[i].stage == yielded:
				case steps[i] == 0:
					moves = append(moves, func() {
						steps[i], subscribed[i] = 1, true
						if retained != "" {
							inbox[i] = append(inbox[i], struct {
								text     string
								replayed bool
							}{retained, true})
						}
					})
				case steps[i] == 1:
					moves = append(moves, func() { steps[i] = 2; publish(saysClaims + " " + all[i].me) })
				}
				if len(inbox[i]) > 0 {
					moves = append(moves, func() {
						message := inbox[i][0]
						inbox[i] = inbox[i][1:]
						if all[i].hear(message.text, message.replayed) == insist {
							publish(all[i].insists() + " " + all[i].me)
						}
					})
				}
			}
			if len(moves) == 0 {
				break
			}
			moves[random.IntN(len(moves))]()
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
