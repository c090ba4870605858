package member_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// limit is how long a test waits for what must happen.
const limit = 60 * time.Second

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func freeURL(t *testing.T) string {
	t.Helper()
	return "http://" + etcdtest.Addresses(t, 1)[0]
}

// three returns the options of three members that serve the stores of their processes only.
func three(t *testing.T) [3]member.Options {
	t.Helper()
	options := etcdtest.Members(t, t.Cleanup)
	for i := range options {
		options[i].ClientURL = ""
	}
	return options
}

func start(t *testing.T, options member.Options) *member.Member {
	t.Helper()
	m, err := member.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	m.SetEligible(false) // no store campaigns beside it yet, so it leaves leadership to others
	return m
}

// startAll starts members at the same time: with fewer than the majority none is ready.
func startAll(t *testing.T, options []member.Options) []*member.Member {
	t.Helper()
	var members []*member.Member
	for _, o := range options {
		members = append(members, start(t, o))
	}
	for _, m := range members {
		await.Receive(m.Ready())
	}
	t.Cleanup(func() { closeAll(members) })
	return members
}

// closeAll closes one after the other. Closed at the same time, the leader would wait 7 s for a
// member that takes over.
func closeAll(members []*member.Member) {
	for _, m := range members {
		m.Close()
	}
}

// records returns what a store beside m has, and adds one record.
func records(t *testing.T, m *member.Member, add string) (ids []string) {
	t.Helper()
	candidate, err := cluster.Open(bounded(t), m.Configure(cluster.Options{Standing: 4 * time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	defer candidate.Close()
	journal, err := candidate.Campaign(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = journal.Load(bounded(t), func(record statestore.Record) error {
		ids = append(ids, string(record.ID))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Commit(bounded(t), []statestore.Group{{{ID: []byte(add), Value: []byte("1")}}}); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestMembersThatAreStartedAgainHaveTheirDataInADirectoryThatOthersCannotOpen(t *testing.T) {
	options := three(t)
	first := startAll(t, options[:])
	for i, m := range first {
		if ids := records(t, m, fmt.Sprint(i)); len(ids) != i {
			t.Errorf("the store beside member %d has the records %q", i, ids)
		}
	}
	info, err := os.Stat(options[0].Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the socket has the mode %v, %v", info.Mode(), err)
	}
	closeAll(first)
	for i, m := range first {
		await.Receive(m.Done())
		if m.Err() != nil {
			t.Errorf("a member that was closed has the error %v", m.Err())
		}
		options[i].Cluster = strings.ReplaceAll(options[i].Cluster, ",", " , ") // may be written otherwise
	}
	if ids := records(t, startAll(t, options[:])[1], "b"); fmt.Sprint(ids) != "[0 1 2]" {
		t.Errorf("the records are %q", ids)
	}
}

func TestAMemberWhoseMachineIsLostIsReplacedAndOneThatIsTakenOutEnds(t *testing.T) {
	options := three(t)
	members := startAll(t, options[:])
	records(t, members[0], "a")
	members[2].Close() // for good
	if err := os.RemoveAll(options[2].Dir); err != nil {
		t.Fatal(err)
	}
	// With an empty directory it must not come back as if nothing had been lost.
	lost := start(t, options[2])
	await.Receive(lost.Done())
	if err := lost.Err(); !errors.Is(err, member.ErrLostData) {
		t.Errorf("a member that lost its data ended with %v", err)
	}

	address := freeURL(t)
	if _, err := member.Replace(bounded(t), options[0].Dir, "m0", address, false); err == nil || !strings.Contains(err.Error(), "the member itself") {
		t.Errorf("Replace of the member that is asked: %v", err)
	}
	for range 2 { // a replacement that was not started can be announced again
		var err error
		options[2].Cluster, err = member.Replace(bounded(t), options[0].Dir, "m2", address, false)
		if err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(options[2].Cluster, "m2="+address) {
		t.Errorf("the new cluster is %q", options[2].Cluster)
	}
	options[2].Join = true
	members[2] = start(t, options[2])
	await.Receive(members[2].Ready())
	if ids := records(t, members[2], "b"); fmt.Sprint(ids) != "[a]" {
		t.Errorf("the records are %q", ids)
	}

	if _, err := member.Replace(bounded(t), options[0].Dir, "m1", freeURL(t), false); !errors.Is(err, member.ErrAlive) {
		t.Fatalf("a member that is alive: %v", err)
	}
	if _, err := member.Replace(bounded(t), options[0].Dir, "m1", freeURL(t), true); err != nil {
		t.Fatal(err)
	}
	await.Receive(members[1].Done())
	if !errors.Is(members[1].Err(), member.ErrRemoved) {
		t.Errorf("a member that was taken out ended with %v", members[1].Err())
	}
	members[1].Close()
	again, err := member.Start(options[1]) // as a supervisor does, with the data that it has
	if err == nil {
		await.Receive(again.Done())
		err = again.Err()
		again.Close()
	}
	if !errors.Is(err, member.ErrRemoved) {
		t.Errorf("started again, it ended with %v", err)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	const peers = "a=https://127.0.0.1:1,b=https://host-b:1"
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ours, strangers := etcdtest.NewAuthority(t), etcdtest.NewAuthority(t)
	ours.Issue(t, "a")
	ours.Issue(t, "elsewhere", net.IPv4(192, 0, 2, 1))
	files := ours.TLS("a")
	for says, change := range map[string]func(*member.Options){
		"is required":                func(o *member.Options) { o.Name = "" },
		"Options.Name \"x\" is none": func(o *member.Options) { o.Name = "x" },
		"name=https://host:2380":     func(o *member.Options) { o.Cluster = "https://host" },
		"the form https://host:238":  func(o *member.Options) { o.Cluster = "a=host" },
		"everything on the network":  func(o *member.Options) { o.Cluster = "a=http://127.0.0.1:1,b=http://host-b:1" },
		"needs certificates":         func(o *member.Options) { o.PeerTLS = member.TLS{} },
		"certificates are given":     func(o *member.Options) { o.Cluster = "a=http://127.0.0.1:1" },
		"Options.PeerTLS must all":   func(o *member.Options) { o.PeerTLS.Key = "" },
		"Options.PeerTLS.CA: open ":  func(o *member.Options) { o.PeerTLS.CA = "missing" },
		"key does not match":         func(o *member.Options) { o.PeerTLS.Key = ours.File("ca.key") },
		"the authority of the memb":  func(o *member.Options) { o.PeerTLS.CA = strangers.File("ca.pem") },
		"it needs 127.0.0.1 as a su": func(o *member.Options) { o.PeerTLS = ours.TLS("elsewhere") },
		"would serve the network":    func(o *member.Options) { o.ClientURL = "http://0.0.0.0:2379" },
		"Options.PeerTLS: https:": func(o *member.Options) {
			o.Cluster, o.PeerTLS, o.ClientURL = "a=http://127.0.0.1:1", member.TLS{}, "https://127.0.0.1:2379"
		},
		"Options.ClientURL": func(o *member.Options) { o.ClientURL = "localhost" },
		"Options.Dir":       func(o *member.Options) { o.Dir = "/tmp/" + strings.Repeat("long", 30) },
		"Options.Election": func(o *member.Options) {
			o.Cluster, o.PeerTLS, o.Election = "a=http://127.0.0.1:1", member.TLS{}, 20*time.Millisecond
		},
		"is this member running already": func(o *member.Options) {
			o.Cluster, o.PeerTLS = "a=http://"+taken.Addr().String(), member.TLS{}
		},
	} {
		options := member.Options{Name: "a", Cluster: peers, Dir: etcdtest.Dir(t, t.Cleanup), PeerTLS: files}
		change(&options)
		m, err := member.Start(options)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Start: %v; want an error with %q", err, says)
		}
	}
}

// m0 and m1 have the last record, m2 has missed it. When m0 has lost its disk, it must not decide
// with m2 that there was no such record: not when it starts first and cannot ask, and not with
// Join.
func TestAMemberThatLostItsDiskTakesNoPartBeforeItIsReplaced(t *testing.T) {
	options := three(t)
	members := startAll(t, options[:])
	members[2].Close()
	records(t, members[1], "missed by m2")
	members[0].Close()
	members[1].Close()
	if err := os.RemoveAll(options[0].Dir); err != nil {
		t.Fatal(err)
	}
	for _, join := range []bool{false, true} {
		options[0].Join = join
		lost := start(t, options[0])
		select {
		case <-lost.Done():
			t.Fatalf("Join %t: it ended though it could ask none: %v", join, lost.Err())
		case <-time.After(time.Second):
		}
		behind := start(t, options[2])
		await.Receive(lost.Done())
		if err := lost.Err(); !errors.Is(err, member.ErrLostData) {
			t.Errorf("Join %t: the member ended with %v", join, err)
		}
		select {
		case <-behind.Ready():
			t.Errorf("Join %t: the member without data has made a majority", join)
		default:
		}
		await.Done(behind.Close) // also without a majority
	}
	behind, whole := start(t, options[2]), start(t, options[1])
	await.Receive(whole.Ready())
	await.Receive(behind.Ready())
	if ids := records(t, whole, "later"); len(ids) != 1 {
		t.Errorf("the others have the records %q", ids)
	}
}
