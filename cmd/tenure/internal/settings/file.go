package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxFile is how many bytes a configuration file may have.
const maxFile = 1 << 20

// A file is a configuration file that was read. Its names and values are not checked yet.
type file struct {
	name string
	keys map[string]yaml.Node
}

// read reads a file, and checks that it is one mapping at most.
func read(name string) (*file, error) {
	opened, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	content, err := io.ReadAll(io.LimitReader(opened, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes: it is no configuration file", name, maxFile)
	}
	f := &file{name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&f.keys); err != nil && !errors.Is(err, io.EOF) { // or only comments
		return nil, fmt.Errorf("%s: %w; write lines like max-keys: 1000", name, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has several documents; remove all but one", name)
	}
	resolve(f.keys)
	return f, nil
}

// resolve puts what an alias refers to in its place.
func resolve(keys map[string]yaml.Node) {
	for name, value := range keys {
		if value.Kind == yaml.AliasNode {
			keys[name] = *value.Alias
		}
	}
}

// errorf returns an error about a line of the file.
func (f *file) errorf(at yaml.Node, format string, arguments ...any) error {
	return fmt.Errorf("%s: %w", f.at(at), fmt.Errorf(format, arguments...))
}

func (f *file) at(node yaml.Node) string { return fmt.Sprintf("%s:%d", f.name, node.Line) }

// bind sets the flags of cmd. The names in the file are checked for all commands, so that a
// mistake shows whichever command reads it; values are checked for this one.
func (f *file) bind(cmd *cobra.Command) error {
	commands := commandsOf(cmd.Root())
	all := slices.Collect(maps.Values(commands))
	var own map[string]yaml.Node
	for _, name := range slices.Sorted(maps.Keys(f.keys)) {
		value := f.keys[name]
		switch command := commands[name]; {
		case value.Kind == yaml.MappingNode:
			section, err := f.section(command, name, value)
			if err != nil {
				return err
			}
			if command == cmd {
				own = section
			}
		case slices.ContainsFunc(all, func(c *cobra.Command) bool { return isFlagOf(c, name) }):
		case command == nil:
			return f.noSetting(value, name, "no command has the flag --"+name, all...)
		case value.Tag != "!!null": // as of a section with nothing but comments
			return f.errorf(value, "%s is a command: write its settings below it, indented", name)
		}
	}
	return errors.Join(f.set(cmd.Flags(), own), f.set(cmd.Flags(), f.keys))
}

// section returns the keys for one command; nil: there is no such command.
func (f *file) section(cmd *cobra.Command, name string, value yaml.Node) (section map[string]yaml.Node, err error) {
	if cmd == nil {
		return nil, fmt.Errorf("%s: there is no command %q", f.name, name)
	}
	if err := value.Decode(&section); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", f.name, name, err)
	}
	resolve(section)
	for key, value := range section {
		if !isFlagOf(cmd, key) {
			return nil, f.noSetting(value, key, cmd.CommandPath()+" has no flag --"+key, cmd)
		}
		if value.Kind == yaml.MappingNode {
			return nil, f.errorf(value, "%s: want a value", key)
		}
	}
	return section, nil
}

// noSetting returns why a name cannot be in the file. unknown is the text if no command has a flag of that name.
func (f *file) noSetting(at yaml.Node, name, unknown string, commands ...*cobra.Command) error {
	hasFlag := func(cmd *cobra.Command) bool { return flagOf(cmd, name) != nil }
	switch {
	case name == configFlag:
		return f.errorf(at, "--%s comes from the command line or %s only", name, Variable(name))
	case name == "help" || slices.ContainsFunc(commands, hasFlag):
		return f.errorf(at, "--%s comes from the command line only", name)
	}
	return f.errorf(at, "%s", unknown)
}

// set gives the flags that have no value yet what keys say. Sections are no values.
func (f *file) set(flags *pflag.FlagSet, keys map[string]yaml.Node) error {
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		value, flag := keys[name], flags.Lookup(name)
		if flag == nil || !isOpen(flag) || value.Kind == yaml.MappingNode {
			continue
		}
		if err := f.setFlag(flags, flag, value); err != nil {
			return f.errorf(value, "%s: %w", name, err)
		}
	}
	return nil
}

func (f *file) setFlag(flags *pflag.FlagSet, flag *pflag.Flag, value yaml.Node) error {
	switch {
	case value.Tag == "!!null":
		return errors.New("there is no value; give one, or remove the line")
	case value.Kind == yaml.ScalarNode:
		return set(flags, flag, f.at(value), value.Value)
	}
	list, ok := flag.Value.(pflag.SliceValue)
	if !ok {
		return errors.New("want one value, and this is a list")
	}
	var texts []string
	if err := value.Decode(&texts); err != nil {
		return errors.New("want a list of values")
	}
	if err := list.Replace(texts); err != nil {
		return err
	}
	note(flag, f.at(value))
	return nil
}

// commandsOf returns the commands below root by name, without those that cobra adds (help, completion).
func commandsOf(root *cobra.Command) map[string]*cobra.Command {
	commands := make(map[string]*cobra.Command)
	for _, cmd := range root.Commands() {
		if cmd.RunE != nil {
			commands[cmd.Name()] = cmd
		}
	}
	return commands
}

// flagOf returns a flag of a command; nil: it has none of that name.
func flagOf(cmd *cobra.Command, name string) *pflag.Flag {
	if flag := cmd.Flags().Lookup(name); flag != nil {
		return flag
	}
	return cmd.InheritedFlags().Lookup(name)
}

// isFlagOf reports whether a command has a flag that may be in a file.
func isFlagOf(cmd *cobra.Command, name string) bool {
	flag := flagOf(cmd, name)
	return flag != nil && isSetting(flag) && name != configFlag
}
