package command

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

func passwordCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "password",
		Short: "Hash a password for the file of users",
		Long: `Read a password from one line of standard input, and print its bcrypt hash for the file
of users and rules. A terminal does not show the password.`,
		Example: "password < password.txt",
		Args:    Arguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			password, err := readPassword(cmd)
			switch {
			case err != nil:
				return err
			case len(password) == 0:
				return errors.New("the password is empty")
			}
			hash, err := bcrypt.GenerateFromPassword(password, bcrypt.DefaultCost)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", hash)
			return err
		},
	}
}

// readPassword reads a password from standard input, which may be a terminal.
func readPassword(cmd *cobra.Command) ([]byte, error) {
	if !output.IsTerminal(cmd.InOrStdin()) {
		return readLine(cmd)
	}
	fd := int(cmd.InOrStdin().(*os.File).Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Password: ")
	defer fmt.Fprintln(cmd.ErrOrStderr()) // the terminal does not show the newline that was typed
	line, err := fromInput(cmd.Context(), func() ([]byte, error) { return term.ReadPassword(fd) })
	if cmd.Context().Err() != nil {
		_ = term.Restore(fd, before) // otherwise the shell would not show its input
	}
	return line, err
}
