package browsertest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// browser is a tab of a headless browser that notes what its console says.
type browser struct {
	context.Context
	t *testing.T

	mu       sync.Mutex
	problems []string // errors and warnings of the console, and exceptions
}

// open starts Chromium. Where it is missing the test is skipped, or fails if CI is true.
func open(t *testing.T) *browser {
	t.Helper()
	path := prerequisite.Program(t, "chromium", "chromium")
	// No deadline: do bounds each step.
	allocator, stopProcess := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.WSURLReadTimeout(await.Patience))...)
	ctx, stop := chromedp.NewContext(allocator)
	b := &browser{Context: ctx, t: t}
	t.Cleanup(func() {
		await.Done(func() {
			_ = chromedp.Cancel(ctx)
			stop()
			stopProcess()
		})
	})
	chromedp.ListenTarget(ctx, func(event any) {
		switch event := event.(type) {
		case *runtime.EventConsoleAPICalled:
			if event.Type == runtime.APITypeError || event.Type == runtime.APITypeWarning {
				var words []string
				for _, argument := range event.Args {
					words = append(words, string(argument.Value))
				}
				b.note("console: " + strings.Join(words, " "))
			}
		case *runtime.EventExceptionThrown:
			b.note("exception: " + event.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if event.Entry.Level == log.LevelError || event.Entry.Level == log.LevelWarning {
				b.note("log: " + event.Entry.Text + " " + event.Entry.URL)
			}
		}
	})
	if err := chromedp.Run(ctx); err != nil { // not in do: the browser would end with its context
		t.Fatalf("chromium does not start: %v", err)
	}
	return b
}

func (b *browser) note(problem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, problem)
}

// mustBeQuiet fails the test if the console has said anything.
func (b *browser) mustBeQuiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, problem := range b.problems {
		b.t.Error(problem)
	}
}

// do runs steps within await.Patience.
func (b *browser) do(steps ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, await.Patience)
	defer cancel()
	if err := chromedp.Run(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns what an expression is in the page.
func eval[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &value))
	return value
}

// until waits until an expression is true in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	deadline := time.Now().Add(await.Patience)
	for !eval[bool](b, "Boolean("+expression+")") {
		if time.Now().After(deadline) {
			b.t.Fatalf("never true: %s; the page says\n%s", expression, eval[string](b, "document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond) // between two questions; the deadline bounds the wait
	}
}

// show sets the width of the window and the colours, "light" or "dark".
func (b *browser) show(width int64, colours string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colours}}))
}

// rowOf is an expression for the row of a lease.
func rowOf(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#lease-table tbody tr")].find(r => r.cells[0].innerText.trim() === %q)`, name)
}
