package transporttest_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// requestCall returns a call that passes its results to a channel.
func requestCall(within time.Duration) (*async.Call, <-chan async.Result) {
	results := make(chan async.Result, 8)
	return &async.Call{Deadline: time.Now().Add(within), Done: func(r async.Result) { results <- r }}, results
}

func TestARequestThatNoGoroutineWaitsForHasTheResultOfOneThatIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
		call, results := requestCall(time.Second)
		client.BeginSet(call, "k", []byte("v"), transport.SetOptions{})
		set := await.Receive(results)
		client.BeginGet(call, "k", transport.GetOptions{})
		got := await.Receive(results)
		if set.Err != nil || got.Err != nil || !got.Exists || string(got.Value) != "v" || got.Version != set.Version {
			t.Errorf("set %+v, got %+v", set, got)
		}
		client.BeginSet(call, "k", []byte("w"), transport.SetOptions{Condition: transport.IfMissing})
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrConditionFailed) || r.Version != set.Version {
			t.Errorf("a condition that is not met: %+v", r)
		}
		client.BeginSet(call, "k", nil, transport.SetOptions{TTL: 1})
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrNotSent) {
			t.Errorf("an option that makes no sense: %+v", r)
		}
		client.BeginGet(call, "", transport.GetOptions{})
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrKeyLengthZero) {
			t.Errorf("a refusal: %+v", r)
		}
	})
}

func TestARequestThatNoGoroutineWaitsForEndsAtItsDeadline(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*transporttest.Conn)
		want    error
	}{
		"the reply is lost": {func(c *transporttest.Conn) {
			c.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{LoseReply: true} })
		}, transport.ErrOutcomeUnknown},
		"there is no connection": {(*transporttest.Conn).Cut, transport.ErrNotSent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
				test.prepare(conn)
				began := time.Now()
				call, results := requestCall(time.Second)
				client.BeginSet(call, "k", nil, transport.SetOptions{})
				r := await.Receive(results)
				if took := time.Since(began); took != time.Second || !errors.Is(r.Err, test.want) || !errors.Is(r.Err, context.DeadlineExceeded) {
					t.Errorf("%v after %v", r.Err, took)
				}
			})
		})
	}
}

func TestARequestThatNoGoroutineWaitsForWaitsForAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
		conn.Cut()
		call, results := requestCall(time.Minute)
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		time.Sleep(time.Second)
		select {
		case r := <-results:
			t.Fatalf("without a connection: %+v", r)
		default:
		}
		conn.Restore()
		if r := await.Receive(results); r.Err != nil {
			t.Error(r.Err)
		}
	})
}

func TestARequestThatNoGoroutineWaitsForCanBeCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
		conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{LoseReply: true} })
		call, results := requestCall(time.Minute)
		call.Cancel(errors.New("nothing is under way"))
		began, cause := time.Now(), errors.New("given up")
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		synctest.Wait()
		call.Cancel(cause)
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrOutcomeUnknown) || !errors.Is(r.Err, cause) || time.Since(began) > 0 {
			t.Errorf("%v after %v", r.Err, time.Since(began))
		}
		call.Cancel(cause) // there is nothing to cancel
		synctest.Wait()
		select {
		case r := <-results:
			t.Errorf("a second result: %+v", r)
		default:
		}
	})
}

func TestCloseEndsRequestsThatNoGoroutineWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
		conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{LoseReply: true} })
		call, results := requestCall(time.Hour)
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		synctest.Wait()
		_ = client.Close()
		select {
		case r := <-results:
			if !errors.Is(r.Err, transport.ErrOutcomeUnknown) {
				t.Errorf("a request that was under way: %v", r.Err)
			}
		default:
			t.Error("Close returned before the request had a result")
		}
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrClosed) || !errors.Is(r.Err, transport.ErrNotSent) {
			t.Errorf("a request after Close: %v", r.Err)
		}
	})
}

// goexitConn is a connection of a program that ends the goroutine of each request.
type goexitConn struct{ *transporttest.Conn }

func (goexitConn) RoundTrip(context.Context, transport.Request) (transport.Reply, error) {
	runtime.Goexit()
	return transport.Reply{}, nil
}

func TestARequestHasAResultEvenIfItsGoroutineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := transport.NewClient(goexitConn{transporttest.Start(t).Connect("a")}, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		call, results := requestCall(time.Hour)
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		if r := await.Receive(results); !errors.Is(r.Err, transport.ErrOutcomeUnknown) {
			t.Error(r.Err)
		}
	})
}

// A function that blocks for ever would otherwise leave one goroutine for each request.
func TestATraceComesBeforeTheResultOfARequestThatNoGoroutineWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shut, traced := make(chan struct{}), make(chan transport.RequestInfo, 1)
		trace := &transport.Trace{Request: func(_ context.Context, info transport.RequestInfo) {
			await.Receive(shut)
			traced <- info
		}}
		client, err := transport.NewClient(transporttest.Start(t).Connect("a"), transport.ClientOptions{Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		call, results := requestCall(time.Hour)
		client.BeginSet(call, "k", nil, transport.SetOptions{})
		synctest.Wait()
		select {
		case r := <-results:
			t.Errorf("the result %+v comes before the function of the Trace has returned", r)
		default:
		}
		close(shut)
		if info := await.Receive(traced); info.Verb != "SET" || info.Key != "k" || info.Err != nil {
			t.Errorf("%+v", info)
		}
		if r := await.Receive(results); r.Err != nil {
			t.Error(r.Err)
		}
		_ = client.Close()
	})
}
