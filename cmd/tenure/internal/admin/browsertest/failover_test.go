package browsertest

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// startServe builds the command, runs "tenure serve" with a page until the test ends, and returns the
// addresses of the page and of the store.
func startServe(t *testing.T) (page, address string) {
	t.Helper()
	command := compiled.Program{Folder: filepath.Join("..", "..", "..")}
	t.Cleanup(command.Remove)
	serve := exec.Command(command.Path(t), "serve", "--memory", "--addr", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	serve.Stderr = t.Output()
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = await.Result(serve.Wait)
	})
	lines := bufio.NewScanner(stdout)
	for page == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "status page on "); ok {
			page = rest
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			address, _, _ = strings.Cut(rest, " ")
		}
	}
	if page == "" || address == "" {
		t.Fatalf("serve says neither where its page is nor where it listens: %v", lines.Err())
	}
	return page, address
}

// gateway is a client that wants a lease.
type gateway struct {
	*transport.Client
	lease *lease.Lease
}

func dial(t *testing.T, address, id, name string, ttl time.Duration) *gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, address, transport.Options{ClientID: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	l, err := lease.New(client, name, lease.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return &gateway{client, l}
}

func (g *gateway) acquire(t *testing.T) *lease.Tenure {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	tenure, err := g.lease.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

func TestThePageShowsALeaseAndFollowsAFailoverWithoutReload(t *testing.T) {
	b := open(t)
	page, address := startServe(t)
	b.show(1400, "light")
	b.do(chromedp.Navigate(page))
	b.until(`document.querySelector("#role").innerText === "active"`)
	b.do(chromedp.Evaluate(`window.loadedOnce = true`, nil)) // a reload would forget it
	const name, ttl = "press-7/active", 2 * time.Second
	first, second := dial(t, address, "gateway-a", name, ttl), dial(t, address, "gateway-b", name, ttl)
	first.acquire(t)
	holder := func(want string) string {
		return fmt.Sprintf(`%[1]s && %[1]s.cells[1].innerText.startsWith(%[2]q)`, rowOf(name), want)
	}
	b.until(holder("gateway-a"))
	b.until(rowOf(name) + `.cells[2].innerText.endsWith("of 2 s")`)
	b.until(`parseInt(` + rowOf(name) + `.cells[4].innerText) >= 2`) // it follows renewals

	taken := make(chan *lease.Tenure, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		tenure, _ := second.lease.Acquire(ctx)
		taken <- tenure
	}()
	b.until(rowOf(name) + `.cells[5].innerText.includes("gateway-b")`) // it waits
	_ = first.Close()                                                  // the holder is gone, and has released nothing
	if await.Receive(taken) == nil {
		t.Fatal("the standby does not get the lease")
	}
	b.until(holder("gateway-b"))
	b.until(rowOf(name) + `.cells[6].innerText.includes("expired")`)
	b.until(`[...document.querySelectorAll("#timeline-table tbody tr")].some(r => /gateway-a[^]*gateway-b[^]*expired/.test(r.innerText))`)
	if !eval[bool](b, "window.loadedOnce === true") {
		t.Error("the page was loaded again")
	}
	b.picture("failover")
	b.mustBeQuiet()
}
