package journal_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
)

// A call is what a process told the system about the files in its directory.
type call struct {
	name     string // create, write, truncate, sync, rename, remove, syncdir, ack
	file, to string // names in the directory
	data     []byte
	offset   int64
	batches  int
}

var (
	straceCall   = regexp.MustCompile(`^\d+ +(\w+)\((.*)\) += (-?\d+)`)
	straceString = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"`)
	stracePath   = regexp.MustCompile(`^\d+<((?:\\x[0-9a-f]{2})*)>`)
)

func unhex(t *testing.T, text string) string {
	t.Helper()
	raw, err := hex.DecodeString(strings.ReplaceAll(text, `\x`, ""))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// recordCalls runs the history in a child process and returns its calls about the journal's
// files. Syncs are slow, so that what should wait for one does not come after it by chance.
func recordCalls(t *testing.T, dir string) (calls []call) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	output, code := runChild(t, child("commit", dir, prerequisite.Program(t, "strace", "strace"), "-f", "-qq", "-y", "-xx", "-s", "10000000", "-o", log,
		"-e", "inject=fsync:delay_enter=2000",
		"-e", "trace=openat,pwrite64,pwritev,write,writev,fdatasync,fsync,ftruncate,?ftruncate64,fallocate,rename,renameat,renameat2,unlink,unlinkat"))
	if strings.Contains(output, "strace:") {
		prerequisite.Missing(t, "this process may not trace another: "+output)
	}
	if code != 0 {
		t.Fatalf("code %d: %s", code, output)
	}
	ours := func(path string) (string, bool) {
		name := filepath.Base(path)
		return name, filepath.Dir(path) == dir && name != "tenure.lock"
	}
	begun := make(map[string]string) // by thread, calls that another thread's call interrupts in the log
	for line := range strings.Lines(string(must(os.ReadFile(log)))) {
		thread, _, _ := strings.Cut(line, " ")
		if before, ok := strings.CutSuffix(line, " <unfinished ...>\n"); ok {
			begun[thread] = before
			continue
		}
		if _, after, ok := strings.Cut(line, " resumed>"); ok {
			line = begun[thread] + after
		}
		found := straceCall.FindStringSubmatch(line)
		if found == nil || strings.HasPrefix(found[3], "-") {
			continue
		}
		name, arguments := found[1], found[2]
		texts := []string{} // names, or what is written
		for _, text := range straceString.FindAllStringSubmatch(arguments, -1) {
			texts = append(texts, unhex(t, text[1]))
		}
		texts = append(texts, "")
		var path string
		if descriptor := stracePath.FindStringSubmatch(arguments); descriptor != nil {
			path = unhex(t, descriptor[1])
		}
		offset, _ := strconv.ParseInt(arguments[strings.LastIndex(arguments, " ")+1:], 0, 64)
		add := func(ok bool, c call) {
			if ok {
				calls = append(calls, c)
			}
		}
		written, isOurs := ours(path)    // the file of a descriptor
		named, isNamed := ours(texts[0]) // of a name
		switch name {
		case "openat":
			add(isNamed && strings.Contains(arguments, "O_EXCL"), call{name: "create", file: named})
		case "pwrite64":
			add(isOurs, call{name: "write", file: written, data: []byte(texts[0]), offset: offset})
		case "ftruncate", "ftruncate64":
			add(isOurs, call{name: "truncate", file: written, offset: offset})
		case "fsync", "fdatasync":
			add(isOurs, call{name: "sync", file: written})
			add(path == dir, call{name: "syncdir"})
		case "renameat", "rename", "renameat2":
			add(isNamed, call{name: "rename", file: named, to: filepath.Base(texts[1])})
		case "unlinkat", "unlink":
			add(isNamed, call{name: "remove", file: named})
		case "write":
			var batch int
			n, _ := fmt.Sscanf(texts[0], "ack %d", &batch)
			add(n == 1, call{name: "ack", batches: batch + 1})
			fallthrough
		default:
			if isOurs {
				t.Fatalf("a call that this test does not know: %.200s", line)
			}
		}
	}
	return calls
}

// A disk has what is durable, and the calls since then, of which a loss of power keeps any.
type disk struct {
	names   map[string]*inode // that processes see
	durable map[string]*inode
	pending []func(map[string]*inode) // changes of names since the directory was synced, in order
}

type inode struct {
	durable []byte
	pending []call // at most a sector each
}

// sector is what a disk writes whole or not at all.
const sector = 512

func (d *disk) apply(c call) {
	change := func(how func(names map[string]*inode)) {
		how(d.names)
		d.pending = append(d.pending, how)
	}
	node := d.names[c.file]
	switch c.name {
	case "create":
		created := new(inode)
		change(func(names map[string]*inode) { names[c.file] = created })
	case "rename":
		change(func(names map[string]*inode) {
			delete(names, c.file)
			names[c.to] = node
		})
	case "remove":
		change(func(names map[string]*inode) { delete(names, c.file) })
	case "syncdir":
		d.durable, d.pending = maps.Clone(d.names), nil
	case "truncate":
		node.pending = append(node.pending, c)
	case "write":
		for at := 0; at < len(c.data); {
			end := min(len(c.data), at+sector-int(c.offset+int64(at))%sector)
			node.pending = append(node.pending, call{name: "write", data: c.data[at:end], offset: c.offset + int64(at)})
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
		if c.name == "truncate" {
			content = resize(content, c.offset)
			continue
		}
		if end := c.offset + int64(len(c.data)); end > int64(len(content)) {
			content = resize(content, end)
		}
		copy(content[c.offset:], c.data)
	}
	return content
}

func resize(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size]
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}

// The calls of a real process are recorded. After each, the power is lost: what was synced is on
// the disk, and any part of the rest. The journal must open, and have exactly the state after the
// last commit that was acknowledged or after the one that was under way.
func TestInvariant37APowerLossKeepsABatchWholeOrNotAtAll(t *testing.T) {
	t.Run("from the beginning", func(t *testing.T) {
		t.Parallel()
		d := &disk{names: make(map[string]*inode), durable: make(map[string]*inode)}
		loseThePower(t, must(filepath.EvalSymlinks(t.TempDir())), d, 0)
	})
	t.Run("after a crash", func(t *testing.T) {
		t.Parallel()
		dir, acknowledged := crashed(t, 0)
		d := &disk{names: make(map[string]*inode)}
		for _, name := range []string{"tenure.log", "tenure.holder"} {
			d.names[name] = &inode{durable: must(os.ReadFile(filepath.Join(dir, name)))}
		}
		// The disk has nothing of the last commit yet: it is in the memory of the system.
		log := d.names["tenure.log"]
		log.durable = log.durable[:journal.LastFrame(log.durable)]
		d.durable = maps.Clone(d.names)
		loseThePower(t, dir, d, acknowledged-1)
	})
}

func loseThePower(t *testing.T, dir string, d *disk, acknowledged int) {
	calls := recordCalls(t, dir)
	states := historyStates()
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	losses, compactions, undone := 0, 0, 0
	for i, c := range calls {
		switch c.name {
		case "ack":
			acknowledged = c.batches
		case "rename":
			if c.to == "tenure.log" {
				compactions++
			}
		}
		d.apply(c)
		for kept := 0; kept <= len(d.pending); kept++ { // changes of names reach the disk in order
			names := maps.Clone(d.durable)
			for _, change := range d.pending[:kept] {
				change(names)
			}
			node := names["tenure.log"]
			if node == nil {
				if acknowledged > 0 {
					t.Fatalf("after call %d the file may be gone", i)
				}
				continue
			}
			for variant, share := range []float64{0, 1, 0.5, 0.5, 0.5, 0.1, 0.1, 0.9, 0.9, 0.97, 0.97, 0.99} {
				if variant > 0 && len(node.pending) == 0 {
					break
				}
				names["tenure.log"] = &inode{durable: node.content(func() bool { return random.Float64() < share })}
				losses++
				found, err := scanOrOpen(t, names, random.IntN(100) == 0)
				if err != nil {
					t.Fatalf("seed %d: power is lost after call %d (%s %s) and %d acknowledged batches, with %.0f%% of %d sectors written: %v",
						seed, i, c.name, c.file, acknowledged, 100*share, len(node.pending), err)
				}
				switch {
				case maps.Equal(found, states[acknowledged]):
					undone++
				case acknowledged < historyLength && maps.Equal(found, states[acknowledged+1]):
				default:
					t.Fatalf("seed %d: power is lost after call %d (%s %s) and %d acknowledged batches: the journal has the state after batch %s",
						seed, i, c.name, c.file, acknowledged, found["last"])
				}
			}
		}
	}
	if acknowledged != historyLength || compactions < 2 || losses < 500 || undone == losses {
		t.Errorf("too little happened: %d of %d batches were acknowledged", acknowledged, historyLength)
	}
}

// scanOrOpen reads a file as Load does, or opens a journal with all files.
func scanOrOpen(t *testing.T, names map[string]*inode, really bool) (map[string]string, error) {
	t.Helper()
	if !really {
		return journal.Scan(names["tenure.log"].durable, names["tenure.holder"] != nil)
	}
	dir := t.TempDir()
	for name, node := range names {
		write(t, filepath.Join(dir, name), node.durable)
	}
	file := open(t, dir)
	found := load(t, file)
	commit(t, file, historyBatch(0)...)
	return found, file.Close()
}
