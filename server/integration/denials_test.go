package integration_test

import (
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A journal makes a difference: another path leads to the store.
func TestWhatStrictModeRefusesIsLogged(t *testing.T) {
	for name, journal := range map[string]*transporttest.Journal{"in memory": nil, "with a journal": new(transporttest.Journal)} {
		t.Run(name, func(t *testing.T) {
			log := new(logbuffer.Buffer)
			s := servertest.NewWithOptions(t, servertest.Options{Journal: journal, Server: server.Options{
				Logger: log.Logger(), Store: statestore.Options{Strict: true, LockPrefixes: []string{"lock/"}},
			}})
			p := testsupport.DialRaw(t, strings.TrimPrefix(s.URL, "mqtt://"), "p")
			never := p.Request("SET", "fenced", "v")
			never.User = append(never.User, mqtt.UserProperty{Name: "__ft", Value: testsupport.InAMinute()})
			for key, refused := range map[string]mqtt.Message{"lock/a": p.Request("SET", "lock/a", "q:1", "NEX", "PX", "60000"), "fenced": never} {
				p.Write(testsupport.PacketOf(t, refused))
				reply := string(p.ReadReply().Payload)
				reason := strings.TrimSuffix(strings.TrimPrefix(reply, "-ERR "), "\r\n")
				line := " verb=SET key=" + key + " reason=\"" + reason + "\"\n"
				if !strings.HasPrefix(reply, "-ERR ") || strings.Count(log.String(), line) != 1 {
					t.Errorf("%q: the log has not once %sbut\n%s", reply, line, log.String())
				}
			}
		})
	}
}
