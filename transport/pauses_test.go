package transport

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// pair is two addresses: b stands by until take, and a fails with fail.
type pair struct {
	*pipeBroker
	*standbys
	client *Client
	frozen atomic.Bool
	slow   atomic.Bool
}

const slowServer = 6 * time.Second

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{standbys: &standbys{refer: map[string]string{"b": "a"}, codes: []byte{packets.ConnackUseAnotherServer}}, pipeBroker: &pipeBroker{}}
	refuse := p.refuseConnect(p.pipeBroker)
	p.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, isConnect := packet.Content.(*packets.Connect); isConnect && p.latestHost() == "a" {
			if p.slow.Load() {
				time.Sleep(slowServer)
			}
			if p.frozen.Load() {
				return true
			}
		}
		return refuse(conn, packet)
	}
	var err error
	if p.client, err = dialTo(t, p.pipeBroker, "mqtt://a,mqtt://b", Options{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	return p
}

// lag returns how long the client takes to connect again.
func (p *pair) lag(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for p.client.Connection().State != Connected {
		if time.Since(began) > time.Hour {
			t.Fatal("the client does not connect again")
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// longestPause is the longest pause of an average.
func longestPause(average time.Duration) time.Duration { return average * 3 / 2 }

func TestASilentServerCostsAtMostOneShortTimeoutWhileAnotherAnswers(t *testing.T) {
	for takeover := 250 * time.Millisecond; takeover < soonFor; takeover += 250 * time.Millisecond {
		t.Run(takeover.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				p.frozen.Store(true)
				p.cut()
				time.Sleep(takeover)
				p.set(nil)
				if lag := p.lag(t); lag > firstTimeout+longestPause(soonMax) {
					t.Errorf("it takes %v", lag)
				}
			})
		})
	}
}

func TestAClientWithSeveralAddressesAsksForANewActiveServerOftenAtFirst(t *testing.T) {
	for takeover := 250 * time.Millisecond; takeover < soonFor-longestPause(soonMax); takeover += 250 * time.Millisecond {
		t.Run(takeover.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				p.set(map[string]string{"a": "", "b": "a"})
				before := len(p.dialled())
				p.cut()
				time.Sleep(takeover)
				attempts := len(p.dialled()) - before
				p.set(map[string]string{"a": ""})
				if lag := p.lag(t); lag > longestPause(soonMax) {
					t.Errorf("it takes %v", lag)
				}
				// The first pauses are shorter, and each attempt after a pause asks both.
				if most := 2 * (6 + int(takeover/(soonMax/2))); attempts > most {
					t.Errorf("%d attempts, want %d at most", attempts, most)
				}
			})
		})
	}
}

func TestAClientAsksSeldomWhenNoServerTakesThePlaceOfTheLostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.set(map[string]string{"a": "", "b": ""})
		p.cut()
		time.Sleep(time.Minute)
		before := len(p.dialled())
		time.Sleep(time.Minute)
		if attempts := len(p.dialled()) - before; attempts > 2*60 {
			t.Errorf("%d attempts in a minute", attempts)
		}
	})
}

// It needs longer than the short timeout. The other one answers, but only stands by.
func TestASlowServerIsReachedBesideOneThatStandsBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.slow.Store(true)
		p.cut()
		synctest.Wait() // until the loss was noticed
		if lag := p.lag(t); lag > 10*time.Minute {
			t.Errorf("it takes %v", lag)
		}
		if got := p.client.Connection().Broker; got != "mqtt://a:1883" {
			t.Error(fmt.Sprint("connected to ", got))
		}
	})
}

// Takeovers follow each other when machines are upgraded.
func TestLossesFollowedByConnectionsOfSomeSecondsDoNotMakeThePausesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.set(nil)
		for range 20 {
			p.cut()
			synctest.Wait() // until the loss was noticed
			if lag := p.lag(t); lag > longestPause(defaultReconnectMin)+time.Millisecond {
				t.Errorf("it takes %v", lag)
			}
			time.Sleep(3 * time.Second)
		}
	})
}
