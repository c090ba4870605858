package fencing_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"

	"github.com/tenurelock/tenure/fencing"
)

// An oldDisk does no more than POSIX asks for: a change of a name is durable when the directory was
// synced, and may be durable before, whatever happens to the changes before and after it.
type oldDisk struct {
	files   map[string]string // what the system sees
	durable map[string]string // what the power may leave
	pending []nameChange      // in their order
	steps   int               // until the power fails; negative: never
	broken  func(operation string) error
}

// A nameChange gives a name to a content, or takes a name away.
type nameChange struct {
	name    string
	content string
	removed bool
}

func (c nameChange) apply(to map[string]string) {
	if c.removed {
		delete(to, c.name)
	} else {
		to[c.name] = c.content
	}
}

type powerFailure struct{}

func (d *oldDisk) step(operation string) error {
	if d.steps == 0 {
		panic(powerFailure{})
	}
	d.steps--
	if d.broken != nil {
		return d.broken(operation)
	}
	return nil
}

func (d *oldDisk) change(c nameChange) {
	c.apply(d.files)
	d.pending = append(d.pending, c)
}

func (d *oldDisk) Read(path string, most int) ([]byte, error) {
	content, there := d.files[path]
	if !there {
		return nil, fs.ErrNotExist
	}
	return []byte(content[:min(len(content), most)]), nil
}

func (d *oldDisk) Create(path string, content []byte) error {
	if _, there := d.files[path]; there {
		return fs.ErrExist
	}
	for _, part := range []string{"", string(content[:len(content)/2]), string(content)} {
		if part == "" {
			d.change(nameChange{name: path})
		} else {
			d.files[path], d.pending[len(d.pending)-1].content = part, part
		}
		if err := d.step("create"); err != nil {
			return err
		}
	}
	return nil
}

func (d *oldDisk) Rename(from, to string) error {
	if err := d.step("rename before"); err != nil {
		return err
	}
	// One change, because a rename is atomic. The other name is left: a removal that is not durable.
	d.change(nameChange{name: to, content: d.files[from]})
	d.change(nameChange{name: from, removed: true})
	return d.step("rename after")
}

func (d *oldDisk) Remove(path string) error {
	if err := d.step("remove"); err != nil {
		return err
	}
	if _, there := d.files[path]; !there {
		return fs.ErrNotExist
	}
	d.change(nameChange{name: path, removed: true})
	return nil
}

func (d *oldDisk) SyncDirectory(string) error {
	if err := d.step("sync before"); err != nil {
		return err
	}
	for _, change := range d.pending {
		change.apply(d.durable)
	}
	d.pending = nil
	return d.step("sync after")
}

// afterProcess returns the disk after a crash of the process: nothing is lost, and nothing more
// became durable.
func (d *oldDisk) afterProcess() *oldDisk {
	return &oldDisk{files: maps.Clone(d.files), durable: maps.Clone(d.durable), pending: slices.Clone(d.pending), steps: -1}
}

// afterPower returns each disk that a loss of power may leave.
func (d *oldDisk) afterPower() (found []*oldDisk) {
	for selection := range 1 << len(d.pending) {
		files := maps.Clone(d.durable)
		for i, change := range d.pending {
			if selection>>i&1 == 1 {
				change.apply(files)
			}
		}
		found = append(found, &oldDisk{files: files, durable: maps.Clone(files), steps: -1})
	}
	return found
}

// A run is what a process knew when it crashed.
type run struct {
	reported int64 // the highest token that it was told is durable
	stored   int64 // the highest that it tried to store
}

// use opens a store, stores the next two tokens, and crashes after so many steps. It reports
// whether the process came to its end.
func (r *run) use(t *testing.T, d *oldDisk, steps int) (complete bool) {
	t.Helper()
	defer func() {
		if failure := recover(); failure != nil && failure != (powerFailure{}) {
			panic(failure)
		}
	}()
	d.steps = steps
	store, err := fencing.OpenFileStoreOn(d, "fence")
	if err != nil {
		t.Fatalf("%+v: with %q: %v", *r, d.files, err)
	}
	if got := store.Highest().Wall; got < r.reported || got > r.stored {
		t.Fatalf("%+v: the highest is %d", *r, got)
	}
	r.reported = store.Highest().Wall // a checker admits writes with this token from now on
	for range 2 {
		r.stored++
		if err := store.Persist(t.Context(), at(r.stored)); err != nil {
			t.Fatal(err)
		}
		r.reported = r.stored
	}
	return true
}

// A process may crash at any step, and again at any step after its restarts; each time the
// power may fail or not. No restart begins below a token that was reported as durable.
func TestInvariant13NoLossOfPowerLowersTheFloorOfAFileStore(t *testing.T) {
	runs := 0
	seen := make(map[string]bool) // many crashes leave the same
	var explore func(d *oldDisk, r run, depth int)
	explore = func(d *oldDisk, r run, depth int) {
		state := fmt.Sprintf("%d %v %q %q %+v", depth, r, d.files, d.durable, d.pending)
		if seen[state] {
			return
		}
		seen[state] = true
		for steps := 0; ; steps++ {
			runs++
			disk, after := d.afterProcess(), r
			complete := after.use(t, disk, steps)
			if depth > 0 {
				explore(disk, after, depth-1)
				for _, left := range disk.afterPower() {
					explore(left, after, depth-1)
				}
			}
			if complete {
				return
			}
		}
	}
	explore(&oldDisk{files: map[string]string{}, durable: map[string]string{}}, run{}, 3)
	t.Logf("%d runs from %d states", runs, len(seen))
	if runs < 1000 {
		t.Errorf("only %d runs", runs)
	}
}

// Each operation may fail, before or after it had its effect: the token may be durable then.
func TestAFileStoreGoesOnAfterAnErrorOfTheDisk(t *testing.T) {
	broken := errors.New("input/output error")
	for failAt := 1; ; failAt++ {
		disk := &oldDisk{files: map[string]string{}, durable: map[string]string{}, steps: -1}
		passed := 0
		disk.broken = func(string) error {
			if passed++; passed == failAt {
				return broken
			}
			return nil
		}
		store, opened := fencing.OpenFileStoreOn(disk, "fence")
		if opened == nil {
			if err := store.Persist(t.Context(), at(3)); passed < failAt {
				if failAt < 8 || err != nil {
					t.Errorf("%d operations, %v", failAt, err)
				}
				return
			} else if stale := store.Persist(t.Context(), at(2)); !errors.Is(err, broken) || !errors.Is(stale, fencing.ErrStaleToken) || !store.Highest().IsZero() {
				t.Errorf("operation %d fails: %v, then %v, the highest is %v", failAt, err, stale, store.Highest())
			}
			if err := store.Persist(t.Context(), at(3)); err != nil || store.Highest() != at(3) {
				t.Errorf("operation %d failed, tried again: %v, the highest is %v", failAt, err, store.Highest())
			}
		} else if !errors.Is(opened, broken) {
			t.Error(opened)
		}
	}
}
