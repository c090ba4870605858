package priority_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/priority"
)

type job struct {
	dueAt time.Duration
	place int
}

func newJobs() *priority.Queue[job] {
	return priority.New(
		func(a, b *job) bool { return a.dueAt < b.dueAt },
		func(j *job) *int { return &j.place },
	)
}

func Example() {
	jobs := newJobs()
	late, soon, later := &job{dueAt: 2 * time.Second}, &job{dueAt: time.Second}, &job{dueAt: time.Minute}
	for _, j := range []*job{late, soon, later} {
		jobs.Push(j)
	}
	jobs.Remove(late)
	later.dueAt = 0
	jobs.Fix(later)
	for jobs.Len() > 0 {
		fmt.Println(jobs.Pop().dueAt)
	}
	// Output:
	// 0s
	// 1s
}

// The model is a slice: the first item has the least time of all, and each item knows whether it is in the
// queue, after any course of changes.
func TestTheFirstItemIsTheFirstByTheOrderAfterAnyChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	jobs, model := newJobs(), []*job(nil)
	for range 20000 {
		pick := func() int { return random.IntN(len(model)) }
		switch action := random.IntN(6); {
		case action < 2 || len(model) == 0:
			j := &job{dueAt: time.Duration(random.IntN(100))}
			if jobs.Has(j) {
				t.Fatal("an item that was never added is in the queue")
			}
			jobs.Remove(j)
			jobs.Fix(j)
			jobs.Push(j)
			model = append(model, j)
		case action == 2:
			at := pick()
			jobs.Remove(model[at])
			if jobs.Has(model[at]) || model[at].place != -1 {
				t.Fatalf("an item that was removed has place %d", model[at].place)
			}
			model = slices.Delete(model, at, at+1)
		case action == 3:
			j := jobs.Pop()
			if jobs.Has(j) || j.place != -1 {
				t.Fatalf("an item that has left has place %d", j.place)
			}
			at := slices.Index(model, j)
			model = slices.Delete(model, at, at+1)
		case action == 4:
			j := model[pick()]
			j.dueAt = time.Duration(random.IntN(100))
			jobs.Fix(j)
		default:
			for range random.IntN(5) {
				model[pick()].dueAt = time.Duration(random.IntN(100))
			}
			jobs.Init()
		}
		if jobs.Len() != len(model) || len(jobs.Items()) != len(model) {
			t.Fatalf("%d items, want %d", jobs.Len(), len(model))
		}
		if len(model) == 0 {
			if jobs.First() != nil || jobs.Pop() != nil {
				t.Fatal("an empty queue has a first item")
			}
			continue
		}
		for _, j := range model {
			if !jobs.Has(j) {
				t.Fatal("an item that was added is not in the queue")
			}
			if j.dueAt < jobs.First().dueAt {
				t.Fatalf("the first item is due at %d, and another at %d", jobs.First().dueAt, j.dueAt)
			}
		}
	}
}

func TestANilQueueIsEmpty(t *testing.T) {
	var jobs *priority.Queue[job]
	j := new(job)
	jobs.Init()
	jobs.Fix(j)
	jobs.Remove(j)
	if jobs.Len() != 0 || jobs.First() != nil || jobs.Pop() != nil || jobs.Items() != nil || jobs.Has(j) {
		t.Error("a nil queue is not empty")
	}
}

// Each request with a deadline and each renewal goes through such a queue.
func TestAQueueThatHasGrownAllocatesNothing(t *testing.T) {
	jobs, all := newJobs(), make([]job, 100)
	course := func() {
		for i := range all {
			all[i].dueAt = time.Duration(i * 37 % 100)
			jobs.Push(&all[i])
		}
		for i := range all {
			all[i].dueAt = -all[i].dueAt
			jobs.Fix(&all[i])
		}
		jobs.Init()
		jobs.Remove(&all[50])
		for jobs.Pop() != nil {
		}
	}
	course()
	if got := testing.AllocsPerRun(10, course); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// BenchmarkFix moves one item of ten thousand, as a renewal does.
func BenchmarkFix(b *testing.B) {
	b.ReportAllocs()
	jobs, all := newJobs(), make([]job, 10000)
	for i := range all {
		all[i].dueAt = time.Duration(i)
		jobs.Push(&all[i])
	}
	for b.Loop() {
		first := jobs.First()
		first.dueAt += 10000
		jobs.Fix(first)
	}
}
