package packetroom_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/packetroom"
)

// Each step is a place, named by its user and a number, and what it does: + takes ten bytes that count,
// - gives them back, and a says that its packet is complete. After = are the places that lose their bytes by the step, each with w if it waits; "no" is a refusal.
func TestWhichPlaceLosesItsBytes(t *testing.T) {
	const limit = 30
	for _, test := range []struct {
		name, steps string
	}{
		{"there is room for all", "a1+ a2+ b1+"},
		{"the longest of the user that has the most goes", "b1+ a1+ a2+ c1+=a1w"},
		{"of one user the longest goes", "a1+ a2+ a3+ a4+=a1w a5+=a2w"},
		{"what was given back is free", "a1+ a2+ a3+ a1- a4+"},
		{"a place that has lost its bytes gets no more", "a1+ a2+ a3+ a4+=a1w a1+=no"},
		{"a place that has given its bytes back gets others", "a1+ a1- a1+ a1+ a1+"},
		{"the longest cannot displace itself", "a1+ a2+ a2+ a1+=no"},
		{"nor can a place have more than all", "a1+ a1+ a1+ a1+=no"},
		{"the next packet of a place waits from its own beginning", "a1+ a2+ a3+ a1a a1- a1+ a4+=a2w"},
		{"of one user no complete packet goes", "a1+ a2+ a3+ a1a a2a a3a a4+=no"},
		{"nor before an incomplete one", "a1+ a2+ a3+ a1a b1+=a2w"},
		{"but for a user that has less", "a1+ a2+ a3+ a1a a2a a3a b1+=a1"},
		{"no user takes from one that has no more", "a1+ a2+ a3+ b1+=a1w b2+=b1w c1+=a2w"},
		{"a user that has as much as others displaces none of theirs", "a1+ b1+ c1+ c2+=c1w"},
	} {
		t.Run(test.name, func(t *testing.T) {
			room := packetroom.New(limit)
			var lost []string
			places := make(map[string]*packetroom.Place)
			for step := range strings.FieldsSeq(test.steps) {
				step, want, _ := strings.Cut(step, "=")
				name, user := step[:2], step[:1]
				p := places[name]
				if p == nil {
					p = room.NewPlace(func(waiting bool) {
						if waiting {
							name += "w"
						}
						lost = append(lost, name)
					})
					places[name] = p
					if !p.Take(user, packetroom.Assured) {
						t.Fatalf("%s has not what is assured", name)
					}
				}
				lost = nil
				switch step[2:] {
				case "+":
					if !p.Take(user, 10) {
						lost = append(lost, "no")
					}
				case "-":
					p.Release(10)
				case "a":
					p.Finished()
				}
				if got := strings.Join(lost, ","); got != want {
					t.Errorf("%s: %q, want %q", step, got, want)
				}
				if room.Used() > limit {
					t.Errorf("%s: %d bytes are taken", step, room.Used())
				}
			}
		})
	}
}

// However many places there are, each has what is assured, and takes nothing from others by that.
func TestWhatIsAssuredIsThereForEachPlace(t *testing.T) {
	room := packetroom.New(10)
	fail := func(bool) { t.Error("a place has lost its bytes") }
	full := room.NewPlace(fail)
	if !full.Take("a", packetroom.Assured+10) {
		t.Fatal("there is no room")
	}
	for range 1000 {
		p := room.NewPlace(fail)
		for range 2 {
			if !p.Take("b", packetroom.Assured/2) {
				t.Fatal("a place has not what is assured")
			}
		}
	}
	if got := room.Used(); got != 10 {
		t.Errorf("%d bytes are taken", got)
	}
}

func TestPlacesAtTheSameTimeStayWithinTheRoom(t *testing.T) {
	const limit = 1 << 20
	room := packetroom.New(limit)
	var tasks sync.WaitGroup
	var displaced atomic.Int64
	for i := range 8 {
		user := string(rune('a' + i%3))
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			taken := make(map[*packetroom.Place]int64)
			for range 3000 {
				p := room.NewPlace(func(bool) { displaced.Add(1) })
				for bytes := int64(4 << 10); bytes < 256<<10 && p.Take(user, bytes); bytes *= 2 {
					taken[p] += bytes
				}
				if random.IntN(4) == 0 {
					p.Finished()
				}
				if got := room.Used(); got > limit || got < 0 {
					t.Errorf("%d bytes are taken", got)
				}
				if len(taken) > 10 {
					for p, bytes := range taken {
						p.Release(bytes)
					}
					clear(taken)
				}
			}
			for p, bytes := range taken {
				p.Release(bytes)
			}
		})
	}
	await.Done(tasks.Wait)
	if displaced.Load() == 0 {
		t.Error("no place was displaced: nothing is tested")
	}
	if got := room.Used(); got != 0 {
		t.Errorf("%d bytes stay", got)
	}
}
