//go:build unix

package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/tenurelock/tenure/internal/await"
)

// console is a terminal, and what was written to it.
type console struct {
	t              *testing.T
	user, terminal *os.File

	mu      sync.Mutex
	written strings.Builder
	changed chan struct{}
}

func newConsole(t *testing.T) *console {
	t.Helper()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	t.Setenv("LC_ALL", "C.UTF-8")
	user, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, user: user, terminal: terminal, changed: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		data := make([]byte, 4096)
		for {
			n, err := user.Read(data)
			c.mu.Lock()
			c.written.Write(data[:n])
			c.mu.Unlock()
			select {
			case c.changed <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = terminal.Close() // the read of the other end fails then
		await.Receive(ended)
		_ = user.Close()
	})
	return c
}

// mustWrite waits until text was written to the terminal after mark, and returns the end of it.
func (c *console) mustWrite(mark int, text string) int {
	c.t.Helper()
	giveUp := time.NewTimer(await.Patience)
	defer giveUp.Stop()
	for {
		c.mu.Lock()
		all := c.written.String()
		c.mu.Unlock()
		if at := strings.Index(all[mark:], text); at >= 0 {
			return mark + at + len(text)
		}
		select {
		case <-c.changed:
		case <-giveUp.C:
			c.t.Fatalf("%q is not in %q", text, all[mark:])
		}
	}
}

func TestAScreenFollowsTheTerminalAndEndsWithAKey(t *testing.T) {
	for name, key := range map[string]string{"q": "q", "Ctrl-C": "\x03", "a key after others": "xyz\x1b[Aq"} {
		t.Run(name, func(t *testing.T) {
			c := newConsole(t)
			if err := pty.Setsize(c.user, &pty.Winsize{Cols: 50, Rows: 5}); err != nil {
				t.Fatal(err)
			}
			before, err := term.GetState(int(c.terminal.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			out := On(c.terminal)
			shown := make(chan error, 1)
			go func() {
				shown <- out.Show(t.Context(), c.terminal, 10*time.Millisecond, func(columns, rows int) []string {
					return []string{fmt.Sprintf("size %dx%d", columns, rows), "2", "3", "4", "5", "line six"}
				})
			}()
			at := c.mustWrite(0, enter+beginFrame+"size 50x5"+endLine)
			if err := pty.Setsize(c.user, &pty.Winsize{Cols: 90, Rows: 7}); err != nil {
				t.Fatal(err)
			}
			at = c.mustWrite(at, "size 90x7")
			c.mustWrite(at, "line six")
			c.mu.Lock()
			if strings.Contains(c.written.String()[:at], "line six") {
				t.Error("a line was drawn below a terminal of five rows")
			}
			c.mu.Unlock()
			if _, err := c.user.WriteString(key); err != nil {
				t.Fatal(err)
			}
			if err := await.Receive(shown); err != nil {
				t.Error(err)
			}
			c.mustWrite(at, endFrame+leave)
			after, err := term.GetState(int(c.terminal.Fd()))
			if err != nil || *after != *before {
				t.Errorf("the terminal has another mode than before: %v", err)
			}
		})
	}
}

func TestAScreenEndsWithItsContextAndRestoresTheTerminal(t *testing.T) {
	c := newConsole(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	shown := make(chan error, 1)
	go func() {
		shown <- On(c.terminal).Show(ctx, c.terminal, time.Hour, func(int, int) []string { return []string{"there"} })
	}()
	c.mustWrite(0, "there")
	stopped := errors.New("stopped")
	cancel(stopped)
	if err := await.Receive(shown); !errors.Is(err, stopped) {
		t.Errorf("%v, want the cause", err)
	}
	c.mustWrite(0, leave)
}

func TestProgressReplacesItsLineAndFitsTheTerminal(t *testing.T) {
	c := newConsole(t)
	if err := pty.Setsize(c.user, &pty.Winsize{Cols: 24, Rows: 5}); err != nil {
		t.Fatal(err)
	}
	progress := On(c.terminal).Progress()
	progress.Show(strings.Repeat("x", 40))
	progress.Clear()
	c.mustWrite(0, "\r"+strings.Repeat("x", 22)+"~\x1b[K\r\x1b[K")
}
