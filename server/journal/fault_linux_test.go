package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

func init() {
	children["truncated while open"] = func(dir string) int {
		file, err := journal.Open(dir, journal.Options{})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		ctx := context.Background()
		for i := range 300 {
			if err := file.Commit(ctx, []statestore.Group{{key(fmt.Sprintf("key-%03d", i), strings.Repeat("x", 500))}}); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		if err := os.Truncate(filepath.Join(dir, "tenure.db"), 8192); err != nil {
			fmt.Println(err)
			return 1
		}
		err = file.Commit(ctx, []statestore.Group{{key("key-100", "y")}})
		fmt.Println("failed:", err)
		if !errors.Is(err, journal.ErrDamaged) {
			return 1
		}
		if again := file.Commit(ctx, nil); !errors.Is(again, err) {
			return 1
		}
		if err := file.Backup(ctx, os.Stdout); err == nil {
			return 1
		}
		if err := file.Close(); err != nil {
			fmt.Println(err)
			return 1
		}
		return 3
	}
}

// Another program cuts the file short, or the disk loses a page: the memory that maps it faults.
func TestInvariant34AFaultOfTheMappedFileEndsTheJournal(t *testing.T) {
	output, code := runChild(t, child("truncated while open", t.TempDir()))
	wantFailure(t, output, code, "damaged", "restore a backup")
}
