package journal_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// silentAt opens the journal in dir, and returns what it knows of the process before.
func silentAt(t *testing.T, dir string) (file *journal.File, silent bool) {
	t.Helper()
	file = open(t, dir)
	former, err := file.Load(context.Background(), func(statestore.Record) error { return nil })
	if err != nil || former.Idle != 0 {
		t.Fatal(former, err)
	}
	return file, former.Silent
}

// killed returns a directory with what a process leaves that ends now.
func killed(t *testing.T, dir string) (left string) {
	t.Helper()
	left = t.TempDir()
	for _, name := range []string{"tenure.log", "tenure.holder"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(left, name), content)
	}
	return left
}

func TestInvariant62AJournalKnowsThatItsMachineWasGoneWithoutAWord(t *testing.T) {
	defer journal.SetBoot("first")()
	stopped := t.TempDir()
	file, silent := silentAt(t, stopped)
	if silent {
		t.Error("a new journal has a process before that fell silent")
	}
	lost := killed(t, stopped)
	if _, silent := silentAt(t, killed(t, lost)); silent {
		t.Error("a process that was killed counts as one that fell silent")
	}
	shut(t, file)

	defer journal.SetBoot("second")()
	if _, silent := silentAt(t, stopped); silent {
		t.Error("a process that was stopped counts as one that fell silent")
	}
	file, silent = silentAt(t, lost)
	if !silent {
		t.Error("a machine that lost power counts as a process that was killed")
	}
	if _, silent := silentAt(t, killed(t, lost)); !silent {
		t.Error("after a kill the next process does not know of the loss of power before")
	}
	shut(t, file)
	if _, silent := silentAt(t, lost); !silent {
		t.Error("after a stop the next process does not know of the loss of power before")
	}
}

func TestInvariant62AnUnreadableNameOfTheProcessBeforeCountsAsSilence(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "zeroes": "\x00\x00", "of an earlier release": `{"pid":1,"host":"h"}`} {
		write(t, filepath.Join(dir, "tenure.holder"), []byte(content))
		file, silent := silentAt(t, dir)
		if !silent {
			t.Errorf("%s: the process before counts as one that was stopped", name)
		}
		shut(t, file)
	}
}
