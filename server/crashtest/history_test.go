package crashtest_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/transport"
)

// version is the nth version that a store issued.
func version(n int) hlc.Timestamp {
	return hlc.Timestamp{Wall: 1_000_000 + int64(n), Node: "StateStore"}
}

func token(n int) hlc.Token { return hlc.Token(version(n)) }

// at sets when an operation was called and returned, in milliseconds. Each has a client of its own.
func at(call, end int, o crashtest.Operation) crashtest.Operation {
	o.Client, o.Key = call, "k"
	o.Call, o.Return = time.Duration(call)*time.Millisecond, time.Duration(end)*time.Millisecond
	return o
}

type op = crashtest.Operation

const ms = time.Millisecond

func set(value string, v int) op {
	return op{Kind: crashtest.Set, Value: value, Result: crashtest.Done, Version: version(v)}
}

func lost(value string) op { return op{Kind: crashtest.Set, Value: value} }

func get(value string, v int) op {
	return op{Kind: crashtest.Get, Read: value, Result: crashtest.Done, Version: version(v)}
}

var absent = op{Kind: crashtest.Get, Result: crashtest.Absent}

type change func(*op)

func with(o op, changes ...change) op {
	for _, c := range changes {
		c(&o)
	}
	return o
}

func px(n int) change      { return func(o *op) { o.TTL = time.Duration(n) * ms } }
func under(n int) change   { return func(o *op) { o.Token = token(n) } }
func nex(o *op)            { o.Condition = transport.IfMissingOrEqual }
func nx(o *op)             { o.Condition = transport.IfMissing }
func fails(v int) change   { return func(o *op) { o.Result, o.Version = crashtest.Failed, version(v) } }
func refused(o *op)        { o.Result, o.Version = crashtest.LowerToken, hlc.Timestamp{} }
func unauthorized(o *op)   { o.Result, o.Version = crashtest.NeedsToken, hlc.Timestamp{} }
func notified(o op) op     { o.Kind = crashtest.Notified; return o }
func vdel(value string) op { return op{Kind: crashtest.VDel, Value: value, Result: crashtest.Done} }

var del = op{Kind: crashtest.Del, Result: crashtest.Done}

// A store answers over a crash from 100 to 200 ms.
var crash = crashtest.Restart{Dead: 100 * ms, Ready: 200 * ms}

func TestTheCheckerTellsGoodHistoriesFromBadOnes(t *testing.T) {
	for _, c := range []struct {
		name       string
		want       porcupine.CheckResult
		strict     bool
		operations []op
	}{
		{"nothing", porcupine.Ok, false, nil},
		{"a value is read", porcupine.Ok, false, []op{at(0, 1, set("a", 1)), at(2, 3, get("a", 1))}},
		{"a stale read", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(2, 3, set("b", 2)), at(4, 5, get("a", 1))}},
		{"a concurrent read may be of either value", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(2, 5, set("b", 2)), at(3, 4, get("a", 1))}},
		{"two reads go back during one write", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(2, 9, set("b", 2)), at(3, 4, get("b", 2)), at(5, 6, get("a", 1))}},

		{"a write survives a crash", porcupine.Ok, false, []op{at(0, 1, set("a", 1)), at(201, 202, get("a", 1))}},
		{"a lost write", porcupine.Illegal, false, []op{at(0, 1, set("a", 1)), at(201, 202, absent)}},
		{"a lost overwrite", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(2, 3, set("b", 2)), at(201, 202, get("a", 1))}},
		{"an unanswered write that is lost", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(90, 101, lost("b")), at(201, 202, get("a", 1))}},
		{"an unanswered write that is kept", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(90, 101, lost("b")), at(201, 202, get("b", 2))}},
		{"an unanswered write that comes late", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(90, 101, lost("b")), at(201, 202, get("a", 1)), at(203, 204, get("b", 2))}},
		{"an unanswered write that comes and goes", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(90, 101, lost("b")), at(201, 202, get("b", 2)), at(203, 204, get("a", 1))}},
		{"a value that nothing wrote", porcupine.Illegal, false, []op{at(0, 1, set("a", 1)), at(2, 3, get("x", 1))}},

		{"a version that stays", porcupine.Illegal, false, []op{at(0, 1, set("a", 2)), at(2, 3, set("b", 2))}},
		{"a version that goes back", porcupine.Illegal, false, []op{at(0, 1, set("a", 2)), at(201, 202, set("b", 1))}},
		{"a version that goes back after the key is gone", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 2)), at(2, 3, del), at(201, 202, set("b", 1))}},
		{"the version of an unanswered write goes back", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 2)), at(90, 101, lost("b")), at(201, 202, get("b", 1))}},
		{"a version that a reply told changes", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(201, 202, get("a", 2))}},
		{"a restart gives a key with a lifetime a new version", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 1), px(500))), at(201, 202, get("a", 2))}},
		{"without a restart it does not", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(500))), at(50, 60, get("a", 2))}},
		{"a restart gives it an older version", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 2), px(500))), at(201, 202, get("a", 1))}},

		{"a condition fails", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(2, 3, with(set("b", 0), nex, fails(1))), at(4, 5, with(set("a", 0), nx, fails(1)))}},
		{"NEX renews its own value", porcupine.Ok, false, []op{at(0, 1, set("a", 1)), at(2, 3, with(set("a", 2), nex))}},
		{"NEX takes the key from another", porcupine.Illegal, false, []op{at(0, 1, set("a", 1)), at(2, 3, with(set("b", 2), nex))}},
		{"NX succeeds twice", porcupine.Illegal, false, []op{at(0, 1, with(set("a", 1), nx)), at(201, 202, with(set("b", 2), nx))}},
		{"a condition fails without a key", porcupine.Illegal, false, []op{at(0, 1, with(set("a", 0), nx, fails(1)))}},
		{"VDEL of another value", porcupine.Illegal, false, []op{at(0, 1, set("a", 1)), at(2, 3, vdel("b"))}},

		{"a deleted key is gone", porcupine.Ok, false, []op{at(0, 1, set("a", 1)), at(2, 3, vdel("a")), at(201, 202, absent)}},
		{"a deleted key came back", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(2, 3, del), at(201, 202, get("a", 1))}},
		{"an unanswered deletion", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(90, 101, with(del, func(o *op) { o.Result = crashtest.Unknown })), at(201, 202, absent)}},

		{"a key expires", porcupine.Ok, false, []op{at(0, 1, with(set("a", 1), px(20))), at(21, 22, absent)}},
		{"a key expires early", porcupine.Illegal, false, []op{at(0, 1, with(set("a", 1), px(20))), at(10, 15, absent)}},
		{"a key does not expire", porcupine.Illegal, false, []op{at(0, 1, with(set("a", 1), px(20))), at(30, 31, get("a", 1))}},
		{"an expired key came back", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(20))), at(21, 22, absent), at(30, 31, get("a", 1))}},
		{"an expired key that was seen gone came back after a crash", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(20))), at(30, 31, absent), at(201, 202, get("a", 2))}},
		{"an expired key that was not seen gone came back", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 1), px(20))), at(201, 202, get("a", 2))}},
		{"a restart gives the whole lifetime again", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 1), px(150))), at(340, 345, get("a", 2)), at(350, 352, absent)}},
		{"a lifetime is not given back", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(150))), at(201, 202, absent)}},
		{"a lifetime is given back twice", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(150))), at(360, 361, get("a", 2))}},
		{"a renewal for a shorter time leaves the longer one in the journal", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 1), px(150))), at(2, 3, with(set("a", 2), px(20))), at(340, 345, get("a", 3))}},
		{"a SET without PX clears the expiry", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(20))), at(2, 3, set("a", 2)), at(30, 31, absent)}},

		{"a key with a token", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 9), under(2))), at(2, 3, with(set("b", 0), refused, under(1))),
			at(4, 5, with(set("b", 0), unauthorized)), at(6, 7, with(set("b", 10), under(2)))}},
		{"a token that goes back", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 8), under(2))), at(2, 3, with(set("b", 9), under(3))), at(201, 202, with(set("c", 10), under(2)))}},
		{"a fence that is lost", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 8), under(2))), at(201, 202, set("b", 9))}},
		{"the fence goes away with the key", porcupine.Ok, false, []op{
			at(0, 1, with(set("a", 8), under(2))), at(2, 3, with(del, under(2))), at(201, 202, set("b", 9))}},
		{"but not in a strict store", porcupine.Illegal, true, []op{
			at(0, 1, with(set("a", 8), under(2))), at(2, 3, with(del, under(2))), at(201, 202, set("b", 9))}},
		{"a strict fence survives the expiry", porcupine.Ok, true, []op{
			at(0, 1, with(set("a", 8), under(2), px(20))), at(30, 31, absent), at(201, 202, with(set("b", 0), refused, under(1)))}},
		{"a strict fence is raised by a DEL of nothing", porcupine.Illegal, true, []op{
			at(0, 1, with(set("a", 8), under(2))), at(2, 3, with(del, under(2))),
			at(4, 5, with(del, under(4), func(o *op) { o.Result = crashtest.Absent })), at(6, 7, with(set("b", 9), under(3)))}},

		{"a notification of the value", porcupine.Ok, false, []op{
			at(0, 1, set("a", 1)), at(2, 3, set("b", 2)), at(0, 9, notified(get("a", 1)))}},
		{"a notification of a write that is lost", porcupine.Illegal, false, []op{
			at(0, 1, set("a", 1)), at(80, 101, lost("b")), at(81, 99, notified(get("b", 2))), at(201, 202, get("a", 1))}},
		{"a notification of an expiry that is lost", porcupine.Illegal, false, []op{
			at(0, 1, with(set("a", 1), px(20))), at(0, 50, with(notified(absent), func(o *op) { o.Version = version(1) })),
			at(201, 202, get("a", 2))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := crashtest.History{Operations: c.operations, Restarts: []crashtest.Restart{crash}, Strict: c.strict}
			if got := h.Check(time.Minute); got != c.want {
				t.Errorf("the checker says %v, want %v:\n%v", got, c.want, &h)
			}
		})
	}
}
