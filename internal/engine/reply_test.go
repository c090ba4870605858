package engine

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/statestore"
)

// Invariant 33: each reply leaves with the commit of what it shows, and at once if that is
// committed. Some keys are committed: "held" (PX 60000), "plain" (no lifetime), "fenced"
// (token 5). While "SET first v" is being committed, the commands of a row come. After the bar
// is when the reply leaves, and what it says: 0 is at once, 1 is with the commit that is under
// way, 2 is with the next one.
func TestInvariant33AReplyLeavesWithTheCommitOfWhatItShows(t *testing.T) {
	long := strings.Repeat("x", 2000)
	rows := []struct {
		name     string
		commands []string
	}{
		{"a read of a key that is being committed", []string{"GET first | 1 v"}},
		{"a read of another key", []string{"GET plain | 0 p"}},
		{"a read of nothing", []string{"GET nothing | 0 missing"}},
		{"a condition on a key that is being committed", []string{"SET first w NX | 1 condition failed"}},
		{"a condition on another key", []string{"SET held w NEX PX 9000 | 0 condition failed"}},
		{"a renewal", []string{"SET held h NEX PX 60000 | 0 ok"}},
		{"a renewal with a shorter lifetime", []string{"SET held h NEX PX 30000 | 0 ok", "SET held h NEX PX 60000 | 0 ok"}},
		{"a longer lifetime", []string{"SET held h NEX PX 60001 | 2 ok"}},
		{"no lifetime any more", []string{"SET held h | 2 ok"}},
		{"a lifetime for a key that had none", []string{"SET plain p PX 60000 | 2 ok"}},
		{"another value", []string{"SET plain q | 2 ok"}},
		{"a higher token", []string{"SET fenced f token~6 | 2 ok"}},
		{"a renewal with the same token", []string{"SET fenced f PX 60000 token~5 | 0 ok"}},
		{"a lower token", []string{"SET fenced f token~4 | 0 lower token"}},
		{"a lower token, after the fence was raised", []string{"SET fenced f token~7 | 2 ok", "SET fenced f token~6 | 2 lower token"}},
		{"a delete", []string{"DEL plain | 2 deleted", "GET plain | 2 missing"}},
		{"a delete of nothing", []string{"DEL nothing | 0 nothing there"}},
		{"a renewal of a key that is being committed", []string{"SET first v NEX PX 1000 | 1 ok"}},
		{"a renewal after a change", []string{"SET held other PX 60000 | 2 ok", "SET held other NEX PX 60000 | 2 ok"}},
		{"a change of a key that is being committed", []string{"SET first w | 2 ok", "GET first | 2 w"}},
		{"a redelivery of a change", []string{"SET plain q correlation~1 | 2 ok", "SET plain q correlation~1 | 2 ok"}},
		{"a timestamp far ahead", []string{"SET held h PX 60000 ahead~2m | 0 timestamp ahead"}},
		{"a request for another store", []string{"GET plain store~other | 0 other store"}},
		{"a request to watch", []string{"KEYNOTIFY plain | 0 ok"}},
		{"over quota, which depends on all keys", []string{"SET plain " + long + " | 1 over quota"}},
		{"over quota after a change", []string{"SET plain q | 2 ok", "SET held " + long + " | 2 over quota"}},
	}
	for i := range 2 * len(rows) {
		row, try := rows[i/2], i%2 == 1
		inBubble(t, fmt.Sprintf("%s, try=%t", row.name, try), func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{MaxBytes: 1000})
			defer d.close()
			d.apply("c", "SET", "held", "h", "PX", "60000")
			d.apply("c", "SET", "plain", "p")
			d.apply("c", "SET", "fenced", "f", "PX", "60000", "token~5")
			d.hold()
			d.submit("first", "SET", "first", "v", "PX", "1000")
			var want [3][]string
			want[1] = append(want[1], "first: ok")
			for _, line := range row.commands {
				command, left, _ := strings.Cut(line, " | ")
				words := strings.Fields(command)
				label := strings.Join(words[:2], " ")
				when, _ := strconv.Atoi(left[:1])
				gone := try && d.try(label, words...)
				free := when == 0 && (words[0] == "GET" || strings.HasSuffix(left, " ok") || strings.HasSuffix(left, " condition failed"))
				if try && (gone && when > 0 || !gone && free && !strings.Contains(command, "~")) {
					t.Errorf("%s may leave at once: %t", command, gone)
				}
				if !gone {
					d.submit(label, words...)
				}
				want[when] = append(want[when], label+":"+left[1:])
			}
			d.want(want[0]...)
			d.commit()
			d.want(want[1]...)
			d.release()
			d.want(want[2]...)
		})
	}
}
