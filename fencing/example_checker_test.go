package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// Several processes write a file, one after the other. The highest token is in a second file.
func ExampleChecker() {
	dir, err := os.MkdirTemp("", "press-7")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	setpoint, fence := filepath.Join(dir, "setpoint"), filepath.Join(dir, "setpoint.fence")

	open := func() *fencing.Checker {
		highest, err := loadToken(fence)
		if err != nil {
			log.Fatal(err)
		}
		checker, err := fencing.NewChecker("setpoint", fencing.CheckerOptions{
			Highest: highest,
			Persist: func(_ context.Context, token hlc.Token) error { return storeToken(fence, token) },
		})
		if err != nil {
			log.Fatal(err)
		}
		return checker
	}
	write := func(checker *fencing.Checker, token hlc.Token, value string) {
		err := checker.Do(context.Background(), token, func() error {
			return os.WriteFile(setpoint, []byte(value), 0o600)
		})
		fmt.Printf("%s with %v: admitted %v, stale %v\n", value, token, err == nil, errors.Is(err, fencing.ErrStaleToken))
	}

	// The tokens of two tenures; lease.Tenure.Token returns them.
	older := hlc.Token{Wall: 1696374425000, Node: "StateStore"}
	newer := hlc.Token{Wall: 1696374427000, Node: "StateStore"}
	checker := open()
	write(checker, older, "41")
	write(checker, newer, "42")
	write(checker, older, "13")
	checker = open() // as after a restart
	write(checker, older, "13")
	write(checker, newer, "43")
	value, err := os.ReadFile(setpoint)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the file holds %s\n", value)
	// Output:
	// 41 with 1696374425000:0:StateStore: admitted true, stale false
	// 42 with 1696374427000:0:StateStore: admitted true, stale false
	// 13 with 1696374425000:0:StateStore: admitted false, stale true
	// 13 with 1696374425000:0:StateStore: admitted false, stale true
	// 43 with 1696374427000:0:StateStore: admitted true, stale false
	// the file holds 43
}

// storeToken stores a token durably: when it returns nil the file has the token. If the power
// fails before, the file has this token or the last one, complete.
func storeToken(path string, token hlc.Token) error {
	text, err := token.MarshalText()
	if err != nil {
		return err
	}
	// Replace the file: overwriting it could leave a mix of both tokens. The name of the
	// temporary file is fixed, because Persist is called for one token at a time, and
	// overwriting what a crash left does no harm.
	temporary := path + ".new"
	if err := writeDurably(temporary, text); err != nil {
		return err
	}
	return renameDurably(temporary, path) // differs between operating systems
}

func writeDurably(path string, text []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := file.Write(text); err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(file.Sync(), file.Close())
}

// loadToken returns the token that storeToken stored last, and the zero token if there is no
// file. It returns an error for a file with anything else: to start without a token would
// admit former tenures.
func loadToken(path string) (token hlc.Token, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return hlc.Token{}, nil
	}
	if err == nil && len(text) == 0 {
		err = errors.New("the file is empty")
	}
	if err == nil {
		err = token.UnmarshalText(text)
	}
	if err != nil {
		return hlc.Token{}, fmt.Errorf("read the token in %s: %w", path, err)
	}
	return token, nil
}

func TestATokenInAFileSurvivesWhatTheFileSurvives(t *testing.T) {
	fence := filepath.Join(t.TempDir(), "fence")
	open := func() *fencing.Checker {
		highest, err := loadToken(fence)
		if err != nil {
			t.Fatal(err)
		}
		return newChecker(t, fencing.CheckerOptions{Highest: highest, Persist: func(_ context.Context, token hlc.Token) error {
			return storeToken(fence, token)
		}})
	}
	if got := open().Highest(); !got.IsZero() {
		t.Errorf("without a file the highest is %v", got)
	}
	for wall := int64(1); wall <= 5; wall++ {
		if err := open().Admit(t.Context(), at(wall)); err != nil {
			t.Errorf("%d: %v", wall, err)
		}
		// A crash during storeToken leaves a part of the next token.
		if err := os.WriteFile(fence+".new", []byte("99999:0:Sta")[:2*wall], 0o600); err != nil {
			t.Fatal(err)
		}
		reopened := open()
		if got := reopened.Highest(); got != at(wall) {
			t.Errorf("the highest after a restart is %v, want %d", got, wall)
		}
		if err := reopened.Admit(t.Context(), at(wall-1)); !errors.Is(err, fencing.ErrStaleToken) {
			t.Errorf("%d after a restart: %v, want ErrStaleToken", wall-1, err)
		}
	}
}

func TestATokenThatCannotBeStoredInItsFileIsNotAdmitted(t *testing.T) {
	fence := filepath.Join(t.TempDir(), "no such directory", "fence")
	checker := newChecker(t, fencing.CheckerOptions{Persist: func(_ context.Context, token hlc.Token) error {
		return storeToken(fence, token)
	}})
	err := checker.Do(t.Context(), at(1), func() error { t.Error("the write ran"); return nil })
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, fencing.ErrNotAdmitted) {
		t.Errorf("%v, want the error of the file", err)
	}
	for _, text := range []string{"", "garbage"} {
		damaged := filepath.Join(t.TempDir(), "fence")
		if err := os.WriteFile(damaged, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := loadToken(damaged); err == nil {
			t.Errorf("a file with %q was read as %v", text, token)
		}
	}
}
