//go:build unix || windows

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/tenurelock/tenure/internal/pair"
)

// kindExit is the kind of the event that startNode adds when a node has ended.
const kindExit = "exit"

// startNode runs this program again as a node, and sends the events of the node to events.
func startNode(s settings, name string, events chan<- pair.Event) (*pair.Process, error) {
	line := func(line []byte) {
		var e pair.Event
		if json.Unmarshal(line, &e) == nil { // a line cut short by SIGKILL is none
			events <- e
		}
	}
	ended := func() { events <- pair.Event{At: time.Now(), Node: name, Kind: kindExit} }
	return pair.Start(name, line, ended, "--node", name, "--run", s.run, "--broker", s.broker,
		"--ttl", s.ttl.String(), fmt.Sprintf("--verbose=%t", s.verbose), fmt.Sprintf("--instant=%t", s.instant))
}

// stopNode asks a node to end, kills it if it does not, and handles its last events
// meanwhile.
func stopNode(ctx context.Context, p *pair.Process, events <-chan pair.Event, heard func(pair.Event)) {
	p.CloseInput()
	_ = p.Wake() // fails if the node has ended
	patience := time.NewTimer(5 * time.Second)
	defer patience.Stop()
	interrupted := ctx.Done()
	for {
		select {
		case <-p.Exited():
			return
		case e := <-events:
			heard(e)
		case <-patience.C:
			_ = p.Signal(os.Kill)
		case <-interrupted:
			_ = p.Signal(os.Kill)
			interrupted = nil
		}
	}
}
