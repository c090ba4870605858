package journal_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// ask sends a line to the process that holds a directory, and returns all that it answers.
func ask(t *testing.T, dir string, line string) string {
	t.Helper()
	conn, err := net.Dial("unix", heldBy(t, dir).Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, line); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil && len(answer) == 0 {
		return err.Error()
	}
	return string(answer)
}

func heldBy(t *testing.T, dir string) (holder struct{ Socket, Secret string }) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "tenure.holder"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &holder); err != nil {
		t.Fatal(err)
	}
	return holder
}

func TestOnlyAProcessWithTheSecretGetsABackup(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "the value")})
	secret := heldBy(t, dir).Secret
	if len(secret) < 20 {
		t.Fatalf("the secret is %q", secret)
	}
	for _, test := range []struct{ name, line, want string }{
		{"no secret", `{"do":"backup"}` + "\n", `{"error":"wrong secret"}` + "\n"},
		{"another secret", `{"do":"backup","secret":"` + strings.Repeat("A", len(secret)) + `"}` + "\n", `{"error":"wrong secret"}` + "\n"},
		{"another request", `{"do":"format","secret":"` + secret + `"}` + "\n", `{"error":"unknown request \"format\": use the same version of tenure"}` + "\n"},
		{"no JSON", "GET / HTTP/1.1\r\n\r\n", ""},
		{"a long line", strings.Repeat("x", 10_000), ""},
	} {
		if got := ask(t, dir, test.line); got != test.want && (test.want != "" || strings.Contains(got, "{")) {
			t.Errorf("%s: the answer is %.300q, want %q", test.name, got, test.want)
		}
	}
	if got := ask(t, dir, `{"do":"backup","secret":"`+secret+`"}`+"\n"); !strings.Contains(got, "the value") {
		t.Errorf("with the secret the answer has %d bytes without the value", len(got))
	}
	commit(t, file, statestore.Group{key("a", "2")}) // the journal goes on
}

// A connection that asks for nothing ends with the journal, and takes the place of few others.
func TestSilentConnectionsHoldNothingUp(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	for range 20 {
		conn, err := net.Dial("unix", heldBy(t, dir).Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	commit(t, file, statestore.Group{key("a", "2")})
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

// A reader that stops reading does not hold up commits, nor Close.
func TestABackupToAStoppedReaderHoldsNothingUp(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	for i := range 10 { // more than a socket holds
		commit(t, file, statestore.Group{key(string(rune('a'+i)), strings.Repeat("x", 1<<20))})
	}
	held := heldBy(t, dir)
	conn, err := net.Dial("unix", held.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, `{"do":"backup","secret":"`+held.Secret+`"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // the backup has begun
		t.Fatal(err)
	}
	for i := range 100 {
		commit(t, file, statestore.Group{key("b", strings.Repeat("y", i*1000))})
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

func TestABackupSaysWhyTheHolderCannotBeAsked(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	path := filepath.Join(dir, "tenure.holder")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own := heldBy(t, dir)
	for _, test := range []struct{ name, content, says string }{
		{"on another host", `{"pid":1,"host":"elsewhere","socket":"/nowhere"}`, "on host elsewhere; do this on that host"},
		{"without a socket", strings.Replace(string(sound), own.Socket, "", 1), "cannot be asked"},
		{"with a socket that is gone", strings.Replace(string(sound), own.Socket, own.Socket+"x", 1), "does not answer"},
		{"with another secret", strings.Replace(string(sound), own.Secret, "x", 1), "wrong secret"},
		{"without a name", "", ""},
	} {
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		backup := filepath.Join(t.TempDir(), "backup")
		if _, err := journal.Backup(t.Context(), dir, backup, nil); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: Backup has error %v, want one with %q", test.name, err, test.says)
		}
		if _, err := os.Stat(backup); err == nil {
			t.Errorf("%s: there is a backup", test.name)
		}
		if _, err := journal.Check(t.Context(), dir, nil); err == nil {
			t.Errorf("%s: Check has no error", test.name)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "backup"), nil); !errors.Is(err, journal.ErrInUse) {
		t.Errorf("without tenure.holder Backup has error %v", err)
	}
}

func TestAnExportOfARunningJournal(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	var out bytes.Buffer
	if err := journal.Export(t.Context(), dir, &out, nil); err != nil || !strings.Contains(out.String(), `"key":"a"`) {
		t.Errorf("Export wrote %q, error %v", out.String(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := journal.Export(ctx, dir, &out, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Export with an ended context has error %v", err)
	}
}
