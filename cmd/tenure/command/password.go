package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"
)

const (
	// maxPassword is the number of bytes of a password that bcrypt reads.
	maxPassword = 72
	// maxCost is the highest cost that package access accepts in a file.
	maxCost = 16
)

func passwordCommand() *cobra.Command {
	var cost int
	password := &cobra.Command{
		Use:   "password",
		Short: "Hash a password for the file of users",
		Long: `Read a password from one line of standard input and print its bcrypt hash, for
the field "password" of a user in the file of users and rules. At a terminal it
asks twice and does not show the password. A password has at most 72 bytes,
because bcrypt reads no more.`,
		Example: `  tenure password
  tenure password --cost 12 < password.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cost < bcrypt.MinCost || cost > maxCost {
				return fmt.Errorf("--cost %d: choose %d to %d; each step doubles the time to log in", cost, bcrypt.MinCost, maxCost)
			}
			password, err := readPassword(cmd)
			if err != nil {
				return err
			}
			hash, err := bcrypt.GenerateFromPassword(password, cost)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", hash)
			return err
		},
	}
	password.Flags().IntVar(&cost, "cost", bcrypt.DefaultCost, fmt.Sprintf("how much work each guess of the password takes, %d to %d; give all users of a file the same", bcrypt.MinCost, maxCost))
	return password
}

// readPassword reads a password from standard input, which may be a terminal.
func readPassword(cmd *cobra.Command) ([]byte, error) {
	file, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		password, err := readLine(cmd.InOrStdin())
		if err != nil {
			return nil, err
		}
		return password, checkPassword(password)
	}
	password, err := ask(cmd, file, "Password: ")
	if err != nil {
		return nil, err
	}
	if err := checkPassword(password); err != nil {
		return nil, err // before asking again
	}
	again, err := ask(cmd, file, "Again: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(password, again) {
		return nil, errors.New("the two passwords differ: try again")
	}
	return password, nil
}

// readLine reads the first line and returns it without the newline.
func readLine(r io.Reader) ([]byte, error) {
	// The limit refuses an endless line without reading all of it.
	line, err := bufio.NewReader(io.LimitReader(r, 1<<10)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// ask prompts on standard error and reads a line without showing it. When the command is
// interrupted, the reading goroutine stays blocked: a read from a terminal cannot be
// cancelled, and the process ends next.
func ask(cmd *cobra.Command, terminal *os.File, prompt string) ([]byte, error) {
	fd := int(terminal.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	type answer struct {
		line []byte
		err  error
	}
	answers := make(chan answer, 1)
	fmt.Fprint(cmd.ErrOrStderr(), prompt)
	defer fmt.Fprintln(cmd.ErrOrStderr()) // the terminal does not show the newline that was typed
	go func() {
		line, err := term.ReadPassword(fd)
		answers <- answer{line, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return nil, fmt.Errorf("terminal: %w", a.err)
		}
		return a.line, nil
	case <-cmd.Context().Done():
		_ = term.Restore(fd, before) // otherwise the shell would not show its input
		return nil, context.Cause(cmd.Context())
	}
}

func checkPassword(password []byte) error {
	switch {
	case len(password) == 0:
		return errors.New("no password: write it on a line of standard input")
	case len(password) > maxPassword:
		return fmt.Errorf("bcrypt reads only %d bytes of a password: choose a password that is not longer", maxPassword)
	}
	return nil
}
