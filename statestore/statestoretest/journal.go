package statestoretest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/statestore"
)

// RunJournal checks that a journal does what [statestore.Journal] says. It calls start in each of its subtests,
// for a journal that is empty. The function that start returns opens that journal: first, and again each time
// after it was closed. Both fail the test if they cannot.
func RunJournal(t *testing.T, start func(t *testing.T) (open func() statestore.Journal)) {
	for _, test := range journalTests {
		t.Run(test.name, func(t *testing.T) {
			test.check(&journalTest{TB: t, open: start(t), want: make(map[string]string)})
		})
	}
}

var journalTests = []struct {
	name  string
	check func(*journalTest)
}{
	{"what was committed is loaded", (*journalTest).committed},
	{"IDs and values are any bytes", (*journalTest).binary},
	{"a journal does not keep the bytes of a batch", (*journalTest).bytesOfABatch},
	{"an error of each ends Load", (*journalTest).errorOfEach},
	{"a random history with restarts", (*journalTest).history},
}

// journalTest is one subtest: a journal, and what it must have.
type journalTest struct {
	testing.TB
	open    func() statestore.Journal
	current statestore.Journal // nil when it is closed
	want    map[string]string
}

// reopen closes the journal, opens it, and compares what it has.
func (j *journalTest) reopen() {
	j.Helper()
	if j.current != nil {
		j.close()
	}
	j.current = j.open()
	got := make(map[string]string)
	_, err := j.current.Load(j.Context(), func(record statestore.Record) error {
		if _, twice := got[string(record.ID)]; twice {
			j.Errorf("record %.40q comes twice", record.ID)
		}
		if record.Value == nil {
			j.Errorf("record %.40q has no value", record.ID)
		}
		got[string(record.ID)] = string(record.Value)
		clear(record.ID) // the bytes belong to this function
		clear(record.Value)
		return nil
	})
	if err != nil {
		j.Fatal(err)
	}
	if err := j.current.Standing(); err != nil {
		j.Errorf("a journal that was opened has no standing: %v", err)
	}
	for id, value := range j.want {
		if was, ok := got[id]; !ok || was != value {
			j.Errorf("record %.40q has %.40q (%t); want %.40q", id, was, ok, value)
		}
	}
	for id := range got {
		if _, ok := j.want[id]; !ok {
			j.Errorf("there is a record %.40q, which is gone or was never committed", id)
		}
	}
	if j.Failed() {
		j.FailNow()
	}
}

func (j *journalTest) close() {
	j.Helper()
	if err := j.current.Close(); err != nil {
		j.Errorf("Close: %v", err)
	}
	j.current = nil
}

func (j *journalTest) commit(batch ...statestore.Group) {
	j.Helper()
	for _, group := range batch {
		for _, record := range group {
			if record.Value == nil {
				delete(j.want, string(record.ID))
			} else {
				j.want[string(record.ID)] = string(record.Value)
			}
		}
	}
	if err := j.current.Commit(j.Context(), batch); err != nil {
		j.Fatalf("Commit: %v", err)
	}
}

func (j *journalTest) end() {
	j.Helper()
	j.reopen()
	j.close()
}

func setRecord(id, value string) statestore.Record {
	return statestore.Record{ID: []byte(id), Value: []byte(value)}
}

func goneRecord(id string) statestore.Record { return statestore.Record{ID: []byte(id)} }

func (j *journalTest) committed() {
	j.reopen()
	j.commit()
	j.commit(nil, statestore.Group{})
	j.reopen() // it has no records
	j.commit(statestore.Group{setRecord("a", "1"), setRecord("b", "2")},
		statestore.Group{setRecord("c", "3"), setRecord("a", "4")})
	j.commit(statestore.Group{setRecord("b", "5"), goneRecord("b")},
		statestore.Group{goneRecord("c"), setRecord("c", "6")})
	j.commit(statestore.Group{goneRecord("never there"), setRecord("d", "7"), setRecord("d", "8")})
	j.reopen()
	j.commit(statestore.Group{goneRecord("a")}, statestore.Group{setRecord("e", "9")},
		statestore.Group{setRecord("a", "10")}, statestore.Group{goneRecord("e")})
	j.end()
}

func (j *journalTest) binary() {
	j.reopen()
	var every []byte
	for b := range 256 {
		every = append(every, byte(b))
	}
	var group statestore.Group
	for _, id := range []string{"\x00", "\x00\x00", "\xff", "\xff\xff", "k", "k\x00", "k\xff", "kk",
		"k/k", string(every), strings.Repeat("x", statestore.MaxID), strings.Repeat("x", statestore.MaxID-1) + "y"} {
		group = append(group, setRecord(id, string(every)))
	}
	j.commit(group)
	j.reopen()
	j.commit(statestore.Group{goneRecord("k"), setRecord("\x00", "\x00"),
		setRecord("large", strings.Repeat("\x00\xff", 100_000)), setRecord("empty", "")})
	j.end()
}

func (j *journalTest) bytesOfABatch() {
	j.reopen()
	record := setRecord("a", "1")
	batch := []statestore.Group{{record}}
	j.commit(batch...)
	copy(record.ID, "b")
	copy(record.Value, "2")
	batch[0] = nil
	j.commit(statestore.Group{setRecord("c", "3")})
	j.end()
}

func (j *journalTest) errorOfEach() {
	j.reopen()
	j.commit(statestore.Group{setRecord("a", "1"), setRecord("b", "2")})
	j.close()
	journal := j.open()
	refused, calls := errors.New("refused"), 0
	_, err := journal.Load(j.Context(), func(statestore.Record) error { calls++; return refused })
	if !errors.Is(err, refused) || calls != 1 {
		j.Errorf("Load returns %v after %d calls; want the error of the first", err, calls)
	}
	if err := journal.Close(); err != nil {
		j.Errorf("Close: %v", err)
	}
	j.end()
}

func (j *journalTest) history() {
	random := rand.New(rand.NewPCG(37, 1))
	for range 5 {
		j.reopen()
		for range 20 {
			var batch []statestore.Group
			for range random.IntN(6) {
				var group statestore.Group
				for range 1 + random.IntN(5) {
					record := goneRecord(fmt.Sprint("record ", random.IntN(60)))
					if random.IntN(3) > 0 {
						record.Value = bytes.Repeat([]byte{byte(random.IntN(256))}, 1+random.IntN(2_000))
					}
					group = append(group, record)
				}
				batch = append(batch, group)
			}
			j.commit(batch...)
		}
	}
	j.end()
}
