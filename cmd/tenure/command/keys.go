package command

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
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
	flags.StringVar(&k.fence, "fence", "", "fencing token, such as \"$TENURE_TOKEN\" below \"tenure run\": the store refuses the request if the key has seen a newer one")
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
		return token, usage(fmt.Errorf("--fence: %w", err))
	}
	return token, nil
}

// An entryReport is what get and watch print about a key as JSON.
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
	return terminal.Clean(version.String()) // the store chose the name of its node
}

// missing returns the error for a key that does not exist. With --json the output says so already.
func (k *keyFlags) missing(key string) error {
	if k.asJSON {
		return exitWith(exitMissing, nil)
	}
	return exitWith(exitMissing, fmt.Errorf("the key %q does not exist", key))
}

func getCommand() *cobra.Command {
	var k keyFlags
	get := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key to standard output, as it is and without a newline. A
terminal gets a newline too, and control characters as \xNN, because it would obey
them. If there is no such key, the exit code is 69.

` + connectionHelp,
		Example: `  tenure get recipe
  tenure get recipe --hex
  tenure get recipe --json | jq -r .version`,
		Args: exactly("the key"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if k.hexValue && k.asJSON {
				return usage(errors.New("give --hex or --json, not both"))
			}
			key, err := k.key(arguments[0])
			if err != nil {
				return err
			}
			return k.with(cmd, func(ctx context.Context, client *transport.Client) error {
				entry, err := client.Get(ctx, key)
				if err != nil {
					return err
				}
				return k.print(cmd, key, entry)
			})
		},
	}
	k.register(get.Flags(), "print the value in hexadecimal digits")
	return get
}

// print prints what get found.
func (k *keyFlags) print(cmd *cobra.Command, key string, entry transport.Entry) error {
	w := cmd.OutOrStdout()
	if k.asJSON {
		if err := output.JSON(w, reportOf(key).with(entry)); err != nil {
			return err
		}
	}
	switch {
	case !entry.Exists:
		return k.missing(key)
	case k.asJSON:
		return nil
	case k.hexValue:
		_, err := fmt.Fprintf(w, "%x\n", entry.Value)
		return err
	}
	if terminal.IsTerminal(w) {
		// Any client may have set the value. A terminal would obey the sequences in it: as ls does with
		// names, it is shown there, and is exact everywhere else.
		_, err := fmt.Fprintln(w, terminal.CleanLines(string(entry.Value)))
		return err
	}
	_, err := w.Write(entry.Value)
	return err
}

func setCommand() *cobra.Command {
	var k keyFlags
	var ifMissing, ifMissingOrEqual, persist bool
	var lifetime time.Duration
	set := &cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Set a key, and print its new version",
		Long: `Set a key to a value, and print the version that the store gave it. The value
"-" is what standard input has, byte for byte, 64 MiB at most; a newline at its
end is part of it. To set "-" itself, give it there. If the condition of --nx or
--nex is not met, nothing changes and the exit code is 69.

With --fence the key is protected: from then on the store refuses writes without
a token, or with an older one.

` + connectionHelp,
		Example: `  tenure set recipe 42
  tenure set recipe - < recipe.bin
  tenure set recipe --hex 00ff10
  tenure set jobs/7 "$HOSTNAME" --nx --px 30s     # only if the key is free
  tenure set setpoint 21.5 --fence "$TENURE_TOKEN"`,
		Args: twoArguments("the key", "the value, which may be empty; - for standard input"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			options := transport.SetOptions{TTL: lifetime, Persist: persist}
			switch {
			case ifMissing && ifMissingOrEqual:
				return usage(errors.New("give --nx or --nex, not both"))
			case ifMissing:
				options.Condition = transport.IfMissing
			case ifMissingOrEqual:
				options.Condition = transport.IfMissingOrEqual
			}
			if cmd.Flags().Changed("px") && (lifetime < time.Millisecond || lifetime%time.Millisecond != 0) {
				return usage(fmt.Errorf("--px %v must be whole milliseconds, at least one; without it the key does not expire", lifetime))
			}
			key, value, token, err := k.arguments(cmd, arguments)
			if err != nil {
				return err
			}
			options.FencingToken = token
			return k.with(cmd, func(ctx context.Context, client *transport.Client) error {
				version, err := client.Set(ctx, key, value, options)
				if errors.Is(err, transport.ErrConditionFailed) {
					return exitWith(exitMissing, fmt.Errorf("%w (the key has version %s)", err, version))
				}
				if err != nil {
					return err
				}
				if k.asJSON {
					report := reportOf(key)
					report.Version = versionOf(version)
					return output.JSON(cmd.OutOrStdout(), report)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), terminal.Clean(version.String()))
				return err
			})
		},
	}
	flags := set.Flags()
	k.register(flags, "VALUE, or standard input, is in hexadecimal digits")
	k.registerFence(flags)
	flags.BoolVar(&ifMissing, "nx", false, "set the key only if it does not exist")
	flags.BoolVar(&ifMissingOrEqual, "nex", false, "set the key only if it does not exist or holds VALUE already")
	flags.DurationVar(&lifetime, "px", 0, "how long the key lives, like 30s; by default it does not expire")
	flags.BoolVar(&persist, "persist", false, "ask the store to keep the key on disk (aio-persistence); a store of Tenure treats all keys alike")
	return set
}

// arguments returns what the arguments KEY and VALUE and the flag --fence say.
func (k *keyFlags) arguments(cmd *cobra.Command, arguments []string) (key string, value []byte, token hlc.Token, err error) {
	if token, err = k.token(cmd); err != nil {
		return key, value, token, err
	}
	if key, err = k.key(arguments[0]); err != nil {
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

func delCommand() *cobra.Command {
	var k keyFlags
	del := &cobra.Command{
		Use:   "del KEY",
		Short: "Delete a key",
		Long: `Delete a key. If there is no such key, the exit code is 69.

If the key was protected by a fencing token, its protection goes with it, unless
the store is strict. "tenure set KEY ''" keeps it. To take a lease from its
holder, use "tenure release", which cannot hit a later holder.

` + connectionHelp,
		Example: `  tenure del recipe
  tenure del setpoint --fence "$TENURE_TOKEN"`,
		Args: exactly("the key"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, err := k.key(arguments[0])
			if err != nil {
				return err
			}
			token, err := k.token(cmd)
			if err != nil {
				return err
			}
			return k.delete(cmd, key, func(ctx context.Context, client *transport.Client) (bool, error) {
				return client.Del(ctx, key, transport.DelOptions{FencingToken: token})
			})
		},
	}
	k.register(del.Flags(), "")
	k.registerFence(del.Flags())
	return del
}

func vdelCommand() *cobra.Command {
	var k keyFlags
	vdel := &cobra.Command{
		Use:   "vdel KEY VALUE",
		Short: "Delete a key if it holds a value",
		Long: `Delete a key if it holds the value; "-" is what standard input has. If the key
holds another value or does not exist, nothing changes and the exit code is 69.

` + connectionHelp,
		Example: `  tenure vdel jobs/7 "$HOSTNAME"
  tenure vdel recipe - < recipe.bin`,
		Args: twoArguments("the key", "the value that the key must hold; - for standard input"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, value, token, err := k.arguments(cmd, arguments)
			if err != nil {
				return err
			}
			return k.delete(cmd, key, func(ctx context.Context, client *transport.Client) (bool, error) {
				return client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token})
			})
		},
	}
	k.register(vdel.Flags(), "VALUE, or standard input, is in hexadecimal digits")
	k.registerFence(vdel.Flags())
	return vdel
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
