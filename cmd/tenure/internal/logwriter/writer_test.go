package logwriter

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// The pipe is a real one: a write to it blocks once it holds 64 KiB.
func TestAnUnreadPipeDelaysNoWriteAndDroppedLinesAreCounted(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const total = 10_000
	w := New(writer, 1<<16)
	line := []byte(strings.Repeat("x", 99) + "\n")
	await.Done(func() {
		for range total {
			_, _ = w.Write(line)
		}
	})
	if await.Result(func() bool { return w.Close(time.Millisecond) }) {
		t.Error("Close reports that every line was written")
	}
	// The reader starts late.
	seen, dropped := make(chan int, 1), make(chan int, 1)
	go func() {
		lines, lost := 0, 0
		for text := bufio.NewScanner(reader); text.Scan(); {
			more := 0
			if n, _ := fmt.Sscanf(text.Text(), "%d lines of the log were dropped here", &more); n == 0 {
				lines++
			}
			lost += more
		}
		seen <- lines
		dropped <- lost
	}()
	if !await.Result(func() bool { return w.Close(await.Patience) }) {
		t.Error("the goroutine still runs")
	}
	_ = writer.Close()
	if arrived, lost := await.Receive(seen), await.Receive(dropped); arrived+lost != total || lost == 0 {
		t.Errorf("%d lines arrived and %d were dropped, of %d", arrived, lost, total)
	}
}

func TestTheCountOfDroppedLinesStandsWhereTheyAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		w := New(writer, 8)
		for _, line := range []string{"first\n", "second\n", "third\n", "fourth\n"} {
			_, _ = w.Write([]byte(line))
			synctest.Wait() // the first line is being written, the second fills the queue
		}
		text := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(reader)
			text <- string(all)
		}()
		synctest.Wait()
		_, _ = w.Write([]byte("fifth\n"))
		w.Close(time.Minute)
		_ = writer.Close()
		const want = "first\nsecond\n2 lines of the log were dropped here: it was not read in time\nfifth\n"
		if got := await.Receive(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// slowWriter takes a moment for each write.
type slowWriter struct{ strings.Builder }

func (w *slowWriter) Write(line []byte) (int, error) {
	time.Sleep(time.Second)
	return w.Builder.Write(line)
}

// The last line of a process that does not return must be written while the Writer is open.
func TestFlushWaitsForTheLinesBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(slowWriter)
		w := New(log, 1<<20)
		_, _ = w.Write([]byte("last\n"))
		if !w.Flush(3*time.Second) || log.String() != "last\n" {
			t.Errorf("after Flush the log has %q", log.String())
		}
		_, _ = w.Write([]byte("later\n"))
		if w.Flush(time.Millisecond) {
			t.Error("Flush reports that a line was written that was not")
		}
		if !w.Close(3*time.Second) || !w.Flush(time.Second) || log.String() != "last\nlater\n" {
			t.Errorf("after Close the log has %q", log.String())
		}
	})
}
