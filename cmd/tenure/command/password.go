package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

// maxCost is the highest cost that package access accepts in a file.
const maxCost = 16

func passwordCommand() *cobra.Command {
	var cost int
	password := &cobra.Command{
		Use:   "password",
		Short: "Hash a password for the file of users",
		Long: `Read a password from one line of standard input, and print its bcrypt hash for the file
of users and rules. A terminal does not show the password.`,
		Example: "password --cost 12 < password.txt",
		Args:    Arguments,
	}
	password.RunE = func(cmd *cobra.Command, _ []string) error {
		if cost < bcrypt.MinCost || cost > maxCost {
			return usagef("--cost %d: choose %d to %d; each doubles the time to log in", cost, bcrypt.MinCost, maxCost)
		}
		password, err := readPassword(cmd)
		if err != nil {
			return err
		}
		if len(password) == 0 {
			return errors.New("the password is empty")
		}
		hash, err := bcrypt.GenerateFromPassword(password, cost)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", hash)
		return err
	}
	password.Flags().IntVar(&cost, "cost", bcrypt.DefaultCost, fmt.Sprintf(
		"how much work each guess takes, %d to %d; give all users of a file the same", bcrypt.MinCost, maxCost))
	return password
}

// readPassword reads a password from standard input, which may be a terminal.
func readPassword(cmd *cobra.Command) ([]byte, error) {
	file, isFile := cmd.InOrStdin().(*os.File)
	if !isFile || !output.IsTerminal(file) {
		line, err := readLine(cmd)
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
	}
	fd := int(file.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Password: ")
	defer fmt.Fprintln(cmd.ErrOrStderr()) // the terminal does not show the newline that was typed
	line, err := fromInput(cmd.Context(), func() ([]byte, error) { return term.ReadPassword(fd) })
	if cmd.Context().Err() != nil {
		_ = term.Restore(fd, before) // otherwise the shell would not show its input
	}
	return line, err
}
