// Package settings finds the values of flags that the command line does not give: in the
// environment, and then in a configuration file.
//
// The flag --max-keys is the variable TENURE_MAX_KEYS and the key max-keys. The file is YAML, as [Example].
// Flags may also be a number of bytes with a unit, or one of several values: [Bytes], [Choice].
//
// Each value is checked as on the command line, and an error names the variable, or the file and
// the line. An empty variable counts as not set, except where [NotEmpty] says otherwise. Variables that
// no flag has are no error, because other programs may use the prefix: [Unused] finds them for a
// warning. A key that no flag has is an error.
//
// The package does not hide values: passwords are no flags.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Example is a configuration file, as the help shows it.
const Example = `  broker: mqtt://localhost:1883   # for each command that has the flag
  log-format: json
  serve:                          # for one command; it goes before a key above
    addr: localhost:1883
    strict: true
    lock-prefix: [locks/, jobs/]
`

const (
	// configFlag is the flag with the name of the file.
	configFlag = "config"
	// prefix begins each variable.
	prefix = "TENURE_"
	// originKey and commandLineKey are annotations of flags.
	originKey      = "tenure_origin"
	commandLineKey = "tenure_command_line_only"
	notEmptyKey    = "tenure_not_empty"
)

// childVariables are those that "tenure run" and "tenure lock" give their child. They say which
// lease the child works under, and configure no command that the child starts.
var childVariables = []string{"TENURE_NAME", "TENURE_TOKEN", "TENURE_HOLDER", "TENURE_DEADLINE"}

// Register adds the flag --config to root and all commands below it. Their errors about a value on the command
// line have the same texts as those of Bind.
func Register(root *cobra.Command) {
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
			return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, refused(err))
		}
		return err
	})
	root.PersistentFlags().String(configFlag, "",
		"file with settings, in YAML: a flag without its dashes is a key; flags and TENURE_ variables count before it")
}

// CommandLineOnly makes the flags with these names come from the command line only: those that
// confirm one action. It panics if there is no such flag.
func CommandLineOnly(flags *pflag.FlagSet, names ...string) { annotate(flags, commandLineKey, names) }

// NotEmpty makes an empty variable an error for the flags with these names: those whose absence lifts a
// protection, where the variable may come from another one that is not set. It panics if there is no
// such flag.
func NotEmpty(flags *pflag.FlagSet, names ...string) { annotate(flags, notEmptyKey, names) }

func annotate(flags *pflag.FlagSet, key string, names []string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, key, []string{"true"}); err != nil {
			panic(err)
		}
	}
}

// Bind gives each flag of cmd that the command line does not give the value of its variable, or
// else of its key in the file of --config (TENURE_CONFIG). Afterwards these flags count as changed.
// It is called once, after the command line was parsed. The error names the variable, or the file
// and the line.
func Bind(cmd *cobra.Command) error {
	if err := bindEnvironment(cmd); err != nil {
		return err
	}
	flag := cmd.Flags().Lookup(configFlag)
	if flag == nil || flag.Value.String() == "" {
		return nil
	}
	file, err := read(flag.Value.String())
	if err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(origin(flag), "--"+configFlag), err)
	}
	return file.bind(cmd)
}

// bindEnvironment sets flags from variables.
func bindEnvironment(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := Variable(f.Name)
		text, given := os.LookupEnv(name)
		if err != nil || !isOpen(f) || slices.Contains(childVariables, name) {
			return
		}
		if text == "" {
			if given && f.Annotations[notEmptyKey] != nil {
				err = fmt.Errorf("%s is empty: give it a value, or unset it", name)
			}
			return
		}
		if failure := set(cmd.Flags(), f, name, text); failure != nil {
			err = fmt.Errorf("%s: %w", name, failure)
		}
	})
	return err
}

// Variable returns the name of the environment variable of a flag.
func Variable(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ofService matches the variables with which Kubernetes tells each container about a Service, such as
// TENURE_SERVICE_HOST and TENURE_PORT_1883_TCP_ADDR of one that is named tenure.
var ofService = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// Unused returns, as sentences for a log, which variables of the environment look like settings and are
// none: a name that no flag of any command has, perhaps misspelled.
func Unused(cmd *cobra.Command) (sentences []string) {
	commands := commandsOf(cmd.Root())
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		text, ours := strings.CutPrefix(name, prefix)
		flag := strings.ToLower(strings.ReplaceAll(text, "_", "-"))
		known := flag == configFlag || isFlagOfAny(commands, flag) || slices.Contains(childVariables, name)
		if ours && !known && !ofService.MatchString(name) {
			sentences = append(sentences,
				name+" is not a setting: no command has a flag of that name, or the flag is for the command line only")
		}
	}
	slices.Sort(sentences)
	return sentences
}

// isOpen reports whether a flag has no value yet, and may have one that is not from the command
// line.
func isOpen(f *pflag.Flag) bool { return !f.Changed && isSetting(f) }

// isSetting reports whether a flag may have a value that is not from the command line.
func isSetting(f *pflag.Flag) bool {
	return f.Name != "help" && f.Name != "version" && f.Annotations[commandLineKey] == nil
}

// set gives a flag a value, and notes where that comes from.
func set(flags *pflag.FlagSet, f *pflag.Flag, origin, text string) error {
	if err := flags.Set(f.Name, text); err != nil {
		return refused(err)
	}
	note(f, origin)
	return nil
}

// refused returns what a flag wants in place of a value, in words that need no knowledge of Go.
func refused(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	want := invalid.Unwrap().Error()
	switch invalid.GetFlag().Value.Type() {
	case "bool":
		want = "want true or false"
	case "int", "uint8", "uint32":
		want = "want a whole number"
		if errors.Is(invalid, strconv.ErrRange) {
			want = "want a smaller number"
		}
	case "duration":
		want = "want a duration such as 5s"
	}
	return fmt.Errorf("%s, not %.512q", want, invalid.GetValue())
}

func note(f *pflag.Flag, origin string) {
	f.Changed = true
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[originKey] = []string{origin}
}

// origin returns the variable, or the file and the line, from which Bind took the value of a flag;
// empty if it took none.
func origin(f *pflag.Flag) string { return strings.Join(f.Annotations[originKey], "") }

// Explain adds to the text of an error where those flags have their values from that the text
// names and the command line does not give. So a refused value is found.
func Explain(flags *pflag.FlagSet, text string) string {
	var origins []string
	flags.VisitAll(func(f *pflag.Flag) {
		named := regexp.MustCompile(`--` + f.Name + `([^-\w]|$)`)
		if origin(f) != "" && named.MatchString(text) {
			origins = append(origins, "--"+f.Name+" comes from "+origin(f))
		}
	})
	if len(origins) == 0 {
		return text
	}
	return text + " (" + strings.Join(origins, "; ") + ")"
}
