package command

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
)

func TestSwitchoverMovesARunningChildToTheNamedHolder(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	const name = "press-7/active"
	node := func(holder string) *running {
		return begin(t, "run", "--broker", address, "--holder", holder, "--ttl", "2s", name, "--", "sh", "-c", "echo "+holder+" works; exec sleep 600")
	}
	a := node("gateway-a")
	a.mustPrint("gateway-a works")
	node("gateway-b")
	c := node("gateway-c")
	await.Until(func() bool { // until the candidate waits, none is ready
		got := tenure(t, "", nil, "switchover", name, "--to", "gateway-c", "--broker", address)
		if got.code == 0 && !regexp.MustCompile(`\Agateway-c leads; gateway-a handed over, and none led for [0-9.]+(µs|ms|s)\n\z`).MatchString(got.stdout) {
			t.Errorf("%+v", got)
		}
		return got.code == 0
	})
	c.mustPrint("gateway-c works")
	if got := tenure(t, "", nil, "switchover", name, "--to", "gateway-c", "--broker", address); got.code != 0 || got.stdout != "gateway-c leads already\n" {
		t.Errorf("%+v", got)
	}
	got := tenure(t, "", nil, "switchover", name, "--to", "gateway-x", "--wait", "1s", "--broker", address)
	if got.code != exitTimeout || !strings.Contains(got.stderr, `"gateway-c" leads on`) {
		t.Errorf("%+v", got)
	}
	got = tenure(t, "", nil, "switchover", name, "--json", "--broker", address)
	if got.code != 0 || !strings.Contains(got.stdout, `"from":"gateway-c","gapMs":`) {
		t.Errorf("%+v", got)
	}
}

func TestSwitchoverSaysWhyNothingWasHandedOver(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	got := tenure(t, "", nil, "switchover", "free", "--broker", address)
	if got.code != exitMissing || !strings.Contains(got.stderr, "no node leads") {
		t.Errorf("%+v", got)
	}
	if got := tenure(t, "", nil, "switchover", "free", "--wait", "0s", "--broker", address); got.code != exitUsage {
		t.Errorf("%+v", got)
	}
	elector, err := election.New(dialTest(t, address, "gateway-a"), "kept", election.Options{RefuseSwitchover: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = elector.Run(ctx, func(ctx context.Context, _ *election.Term) error {
			close(leads)
			<-ctx.Done()
			return nil
		})
	}()
	await.Receive(leads)
	got = tenure(t, "", nil, "switchover", "kept", "--wait", time.Minute.String(), "--broker", address)
	if got.code != exitRefused || !strings.Contains(got.stderr, "the leader refuses to hand over") {
		t.Errorf("%+v", got)
	}
	cancel()
	await.Receive(ended)
}
