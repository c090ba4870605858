package journal_test

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server/journal"
)

// A disk has what is durable, and the calls since then, of which a loss of power keeps any.
type disk struct {
	names   map[string]*inode // that processes see
	durable map[string]*inode
	pending []func(map[string]*inode) // changes of names since the directory was synced, in order
	files   map[*os.File]*inode
}

type inode struct {
	durable []byte
	pending []journal.Call // at most a sector each
}

func newDisk() *disk {
	return &disk{names: make(map[string]*inode), durable: make(map[string]*inode), files: make(map[*os.File]*inode)}
}

// sector is what a disk writes whole or not at all.
const sector = 512

func (d *disk) apply(c journal.Call) {
	change := func(how func(names map[string]*inode)) {
		how(d.names)
		d.pending = append(d.pending, how)
	}
	name := filepath.Base(c.Path)
	node := d.names[name]
	if c.File != nil && d.files[c.File] == nil { // later it may have another name
		d.files[c.File] = d.names[filepath.Base(c.File.Name())]
	}
	if c.File != nil {
		node = d.files[c.File]
	}
	switch c.Kind {
	case "create":
		created := new(inode)
		change(func(names map[string]*inode) { names[name] = created })
	case "rename":
		change(func(names map[string]*inode) {
			delete(names, name)
			names[filepath.Base(c.To)] = node
		})
	case "remove":
		change(func(names map[string]*inode) { delete(names, name) })
	case "syncdir":
		d.durable, d.pending = maps.Clone(d.names), nil
	case "truncate":
		node.pending = append(node.pending, c)
	case "write":
		for at := 0; at < len(c.Content); {
			end := min(len(c.Content), at+sector-int(c.At+int64(at))%sector)
			part := journal.Call{Kind: "write", Content: c.Content[at:end], At: c.At + int64(at)}
			node.pending = append(node.pending, part)
			at = end
		}
	case "sync":
		node.durable, node.pending = node.content(func() bool { return true }), nil
	}
}

// content returns the bytes of a file if keep says which pending calls reached the disk.
func (n *inode) content(keep func() bool) []byte {
	content := slices.Clone(n.durable)
	for _, c := range n.pending {
		if !keep() {
			continue
		}
		if c.Kind == "truncate" {
			content = resize(content, c.At)
			continue
		}
		if end := c.At + int64(len(c.Content)); end > int64(len(content)) {
			content = resize(content, end)
		}
		copy(content[c.At:], c.Content)
	}
	return content
}

func resize(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size]
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}

// After each call that changes a file, the power is lost: what was synced is on the disk, and any part of the rest.
// The journal must open, and have exactly the state after the last commit that was acknowledged or after the one
// that was under way.
func TestInvariant37APowerLossKeepsABatchWholeOrNotAtAll(t *testing.T) {
	t.Run("from the beginning", func(t *testing.T) { loseThePower(t, t.TempDir(), newDisk()) })
	t.Run("after a crash", func(t *testing.T) {
		dir, _ := crashed(t, 0)
		d := newDisk()
		for _, name := range []string{"tenure.log", "tenure.holder"} {
			d.names[name] = &inode{durable: must(os.ReadFile(filepath.Join(dir, name)))}
		}
		// The disk has nothing of the last commit yet: it is in the memory of the system.
		log := d.names["tenure.log"]
		last := journal.LastFrame(log.durable)
		log.pending = []journal.Call{{Kind: "write", Content: log.durable[last:], At: int64(last)}}
		log.durable = log.durable[:last]
		d.durable = maps.Clone(d.names)
		loseThePower(t, dir, d)
	})
}

func loseThePower(t *testing.T, dir string, d *disk) {
	defer journal.SetSpaceConstant(16 << 10)()
	var mu sync.Mutex // of all that is below
	const seed = 1
	random, states := rand.New(rand.NewPCG(seed, seed)), historyStates()
	acknowledged, losses, compactions, undone := 0, 0, 0, 0
	if len(d.names) > 0 {
		acknowledged = historyLength/2 - 1
	}
	check := func(after string, found map[string]string, err error, acknowledged int) {
		switch {
		case err != nil:
			t.Errorf("seed %d: after a %s and %d acknowledged batches: %v", seed, after, acknowledged, err)
		case maps.Equal(found, states[acknowledged]):
			undone++
		case acknowledged == historyLength || !maps.Equal(found, states[acknowledged+1]):
			t.Errorf("seed %d: after a %s and %d acknowledged batches the journal has the state after batch %s",
				seed, after, acknowledged, found["last"])
		}
	}
	var opened []func() // the disks that a journal is opened on, and not only read
	lose := func(after string) {
		for kept := 0; kept <= len(d.pending); kept++ { // changes of names reach the disk in order
			names := maps.Clone(d.durable)
			for _, change := range d.pending[:kept] {
				change(names)
			}
			log := names["tenure.log"]
			if log == nil {
				if acknowledged > 0 {
					t.Errorf("after a %s the file may be gone", after)
				}
				continue
			}
			for variant, share := range []float64{0, 1, 0.5, 0.5, 0.5, 0.1, 0.1, 0.9, 0.9, 0.97, 0.97, 0.99} {
				if variant > 0 && len(log.pending) == 0 {
					break
				}
				losses++
				content := log.content(func() bool { return random.Float64() < share })
				found, err := journal.Scan(content, names["tenure.holder"] != nil)
				check(after, found, err, acknowledged)
				if random.IntN(100) > 0 {
					continue
				}
				left, acknowledged := t.TempDir(), acknowledged
				for name, node := range names {
					write(t, filepath.Join(left, name), node.durable)
				}
				write(t, filepath.Join(left, "tenure.log"), content)
				opened = append(opened, func() {
					file := open(t, left)
					check(after, load(t, file), nil, acknowledged)
					commit(t, file, historyBatch(0)...)
				})
			}
		}
	}
	restore := journal.Watch(func(c journal.Call, do func() error) error {
		if c.Kind == "sync" {
			time.Sleep(time.Millisecond) // what should wait for it does not come after it by chance
		}
		mu.Lock()
		defer mu.Unlock()
		if err := do(); err != nil || t.Failed() {
			return err
		}
		d.apply(c)
		if c.Kind == "rename" && filepath.Base(c.To) == "tenure.log" {
			compactions++
		}
		lose(c.Kind)
		return nil
	})
	file, err := commitHistory(t, dir, historyLength, func(batches int) {
		mu.Lock()
		defer mu.Unlock()
		acknowledged = batches
	})
	if err == nil {
		err = file.Close()
	}
	restore()
	for _, do := range opened {
		do()
	}
	if err != nil || acknowledged != historyLength || compactions < 2 || losses < 500 || undone == losses {
		t.Errorf("too little happened: %d of %d batches were acknowledged, %d compactions, %d losses of power, error %v",
			acknowledged, historyLength, compactions, losses, err)
	}
	for name, node := range d.names { // no call is missing
		content := must(os.ReadFile(filepath.Join(dir, name)))
		if !bytes.Equal(content, node.content(func() bool { return true })) {
			t.Errorf("%s has other bytes than were written", name)
		}
	}
}
