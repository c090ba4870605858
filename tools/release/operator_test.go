//go:build unix

package release

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The user for operators in docs/operate.md may do what the page says, and no more.
func TestTheUserOfTheOperatorsPageLooksAndChangesNothing(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/operate.md has no file with users")
	}
	dir := t.TempDir()
	users, password := filepath.Join(dir, "users.yaml"), filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	hashing := exec.CommandContext(t.Context(), built.Path(t), "password")
	hashing.Stdin = strings.NewReader("secret")
	hash, err := hashing.Output()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(block[1]), "laptop-", host+"-")
	text = regexp.MustCompile(`\$2a\S+`).ReplaceAllLiteralString(text, strings.TrimSpace(string(hash)))
	if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	startUntil(t, "listening on", exec.Command(built.Path(t), "serve", "--memory", "--addr", address, "--auth", users))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const refused, missing = 104, 105
	for _, test := range []struct {
		arguments string
		code      int
	}{
		{"doctor", 0},
		{"get press-7/setpoint", missing},
		{"set press-7/setpoint 42", refused},
		{"get press-7/setpoint --client-id gateway-a", refused},
	} {
		cmd := exec.CommandContext(ctx, built.Path(t), append(strings.Fields(test.arguments), "--broker", "mqtt://"+address, "--username", "operator", "--password-file", password)...)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != test.code {
			t.Errorf("tenure %s: %v, want exit code %d\n%s", test.arguments, cmd.ProcessState, test.code, out)
		}
	}
}
