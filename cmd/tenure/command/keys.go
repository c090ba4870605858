package command

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// maxValue bounds a value in bytes: what a command reads from standard input, and the largest
// packet that it takes from a broker. Servers allow less.
const maxValue = 64 << 20

// keyFlags are the flags of the commands for one key.
type keyFlags struct {
	connection
	hexKey, hexValue, asJSON bool
	fence                    string
}

// register adds the flags that all of these commands have. hexValue is the help of --hex; empty:
// there is no value.
func (k *keyFlags) register(flags *pflag.FlagSet, hexValue string) {
	k.connection.register(flags)
	flags.BoolVar(&k.hexKey, "hex-key", false, "KEY is in hexadecimal digits")
	if hexValue != "" {
		flags.BoolVar(&k.hexValue, "hex", false, hexValue)
	}
	flags.BoolVar(&k.asJSON, "json", false, "print JSON; what is not UTF-8 is in base64, in keyBase64 and valueBase64")
}

func (k *keyFlags) registerFence(flags *pflag.FlagSet) {
	defer settings.NotEmpty(flags, "fence") // of an unset variable: the request must not go unprotected
	flags.StringVar(&k.fence, "fence", "", "fencing token, such as \"$TENURE_TOKEN\" in the child of run: the store refuses the request if the key has seen a newer one")
}

// withKey connects to the broker and calls do with the key that an argument names. It refuses two forms of output.
func (k *keyFlags) withKey(
	cmd *cobra.Command, argument string, do func(ctx context.Context, client *transport.Client, key string) error,
) error {
	if k.hexValue && k.asJSON {
		return usage(errors.New("give --hex or --json, not both"))
	}
	key, err := k.key(argument)
	if err != nil {
		return err
	}
	return k.with(cmd, func(ctx context.Context, client *transport.Client) error { return do(ctx, client, key) })
}

// key returns the key that an argument names.
func (k *keyFlags) key(argument string) (string, error) {
	if !k.hexKey {
		return argument, nil
	}
	key, err := hex.DecodeString(argument)
	if err != nil {
		return "", usage(fmt.Errorf("--hex-key: KEY: %w", err))
	}
	return string(key), nil
}

// value returns the value that an argument names: itself, or standard input for "-".
func (k *keyFlags) value(cmd *cobra.Command, argument string) ([]byte, error) {
	value := []byte(argument)
	if argument == "-" {
		var err error
		if value, err = readAll(cmd.Context(), cmd.InOrStdin()); err != nil {
			return nil, err
		}
	}
	if !k.hexValue {
		return value, nil
	}
	digits := make([]byte, 0, len(value))
	for _, c := range value {
		if c != '\n' && c != '\r' && c != ' ' {
			digits = append(digits, c)
		}
	}
	decoded := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(decoded, digits); err != nil {
		return nil, usage(fmt.Errorf("--hex: VALUE: %w", err))
	}
	return decoded, nil
}

// readAll reads standard input, maxValue bytes at most.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	return fromInput(ctx, func() ([]byte, error) {
		content, err := io.ReadAll(io.LimitReader(r, maxValue+1))
		if err == nil && len(content) > maxValue {
			return nil, fmt.Errorf("it has more than %d bytes, and no store takes such a value", maxValue)
		}
		return content, err
	})
}

// token returns the fencing token of --fence; zero: none.
func (k *keyFlags) token(cmd *cobra.Command) (hlc.Token, error) {
	if !cmd.Flags().Changed("fence") {
		return hlc.Token{}, nil
	}
	if k.fence == "" { // of an unset variable: the request must not go unprotected
		return hlc.Token{}, usage(errors.New("--fence is empty; give a token, or leave it out"))
	}
	token, err := hlc.ParseToken(k.fence)
	if err != nil {
		return token, usage(fmt.Errorf(
			"--fence %.64q is no token; one looks like 1795363097601:1:StateStore, as in $TENURE_TOKEN", k.fence))
	}
	return token, nil
}

// arguments returns what the arguments KEY and VALUE and the flag --fence say.
func (k *keyFlags) arguments(cmd *cobra.Command, arguments []string) (key string, value []byte, token hlc.Token, err error) {
	if token, err = k.token(cmd); err != nil {
		return key, value, token, err
	}
	if key, err = k.key(arguments[0]); err != nil || len(arguments) == 1 {
		return key, value, token, err
	}
	value, err = k.value(cmd, arguments[1])
	return key, value, token, err
}

// twoArguments accepts a name, which is not empty, and a value, which may be.
func twoArguments(name, value string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		if len(arguments) == 2 && arguments[0] != "" {
			return nil
		}
		return exactly(name, value)(cmd, arguments)
	}
}

// An entryReport is what the commands for one key print as JSON.
type entryReport struct {
	Time        string  `json:"time,omitempty"` // of watch
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"keyBase64,omitempty"`
	Exists      *bool   `json:"exists,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
	Version     string  `json:"version,omitempty"`
	Deleted     *bool   `json:"deleted,omitempty"` // of del and vdel
	Missed      bool    `json:"missed,omitempty"`  // of watch
}

// reportOf returns a report about a key alone.
func reportOf(key string) entryReport {
	var r entryReport
	r.Key, r.KeyBase64 = output.Text(key)
	return r
}

// with returns r with what the key holds.
func (r entryReport) with(entry transport.Entry) entryReport {
	r.Exists = &entry.Exists
	if entry.Exists {
		r.Value, r.ValueBase64 = output.Text(entry.Value)
		r.Version = versionOf(entry.Version)
	}
	return r
}

// versionOf returns the text of a version, and nothing if the store sent none.
func versionOf(version hlc.Timestamp) string {
	if version.IsZero() {
		return ""
	}
	return output.Clean(version.String()) // the store chose the name of its node
}

// missing returns the error for a key that does not exist. With --json the output says so already.
func (k *keyFlags) missing(key string) error {
	if k.asJSON {
		return exitWith(exitMissing, nil)
	}
	return exitWith(exitMissing, fmt.Errorf("the key %q does not exist", key))
}

// delete runs del or vdel.
func (k *keyFlags) delete(cmd *cobra.Command, key string, request func(context.Context, *transport.Client) (bool, error)) error {
	return k.with(cmd, func(ctx context.Context, client *transport.Client) error {
		deleted, err := request(ctx, client)
		if err != nil {
			return err
		}
		if k.asJSON {
			report := reportOf(key)
			report.Deleted = &deleted
			if err := output.JSON(cmd.OutOrStdout(), report); err != nil {
				return err
			}
		}
		if !deleted {
			return k.missing(key)
		}
		return nil
	})
}

// maxLine bounds a line that a command reads, in bytes.
const maxLine = 1 << 10

// fromInput returns what read reads from standard input, or the cause of ctx when that ends. The goroutine
// that reads stays blocked then, because a read from a terminal cannot be cancelled; the process ends next.
func fromInput[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		content T
		err     error
	}
	done := make(chan result, 1)
	go func() {
		content, err := read()
		done <- result{content, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.content, fmt.Errorf("standard input: %w", r.err)
		}
		return r.content, nil
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// readLine reads the first line, with its line break if it has one. An endless line is cut at maxLine
// bytes.
func readLine(r io.Reader) ([]byte, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxLine)).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}

// exactly accepts one argument for each name, and says which is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		line := cmd.Root().Name() + " " + cmd.Use
		switch {
		case len(arguments) < len(names):
			return fmt.Errorf("give %s: %s", names[len(arguments)], line)
		case len(arguments) > len(names):
			return fmt.Errorf("%q is one argument too many: %s", arguments[len(names)], line)
		}
		if i := slices.Index(arguments, ""); i >= 0 {
			return fmt.Errorf("an argument is empty: give %s: %s", names[i], line)
		}
		return nil
	}
}

// noArguments refuses arguments of a command that takes none.
func noArguments(cmd *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("%s takes no arguments", cmd.Name())
	}
	return nil
}

// explainDashes makes the errors of a command about an unknown flag say what goes after --.
func explainDashes(cmd *cobra.Command, what, arguments string) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("%w; %s goes after --: %s %s", err, what, cmd.CommandPath(), arguments)
		}
		return cmd.Root().FlagErrorFunc()(cmd, err)
	})
}
