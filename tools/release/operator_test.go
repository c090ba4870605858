//go:build unix

package release

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/mosquitto"
)

// The user for operators in docs/operate.md may do what the page says, and no more.
func TestTheUserOfTheOperatorsPageLooksAndChangesNothing(t *testing.T) {
	page := read(t, "../../docs/operate.md")
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/operate.md has no file with users")
	}
	dir := t.TempDir()
	password := write(t, dir, "password", []byte("secret"))
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
	users := write(t, dir, "users.yaml", []byte(text))
	address := mosquitto.FreeAddress(t)
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
