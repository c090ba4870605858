package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// A file is a configuration file that was read. Its names and values are not checked yet.
type file struct {
	name string
	keys map[string]yaml.Node
}

// read reads a file, and checks that it is one mapping at most.
func read(name string) (*file, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f := &file{name: name}
	if err := yaml.Unmarshal(content, &f.keys); err != nil {
		return nil, fmt.Errorf("%s: %w; write lines like max-keys: 1000", name, err)
	}
	return f, nil
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
	var own map[string]yaml.Node
	for _, name := range slices.Sorted(maps.Keys(f.keys)) {
		value := f.keys[name]
		switch command := commands[name]; {
		case command != nil && value.Kind == yaml.MappingNode:
			section, err := f.section(command, value)
			if err != nil {
				return err
			}
			if command == cmd {
				own = section
			}
		case isFlagOfAny(commands, name):
		case command == nil:
			return f.errorf(value, "%s is no command, and no setting of any: no such flag, or one for the command line only",
				name)
		case value.Tag != "!!null": // as of a section with nothing but comments
			return f.errorf(value, "%s is a command: write its settings below it, indented", name)
		}
	}
	return errors.Join(f.set(cmd.Flags(), own), f.set(cmd.Flags(), f.keys))
}

// section returns the keys for one command.
func (f *file) section(cmd *cobra.Command, value yaml.Node) (section map[string]yaml.Node, err error) {
	if err := value.Decode(&section); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", f.name, cmd.Name(), err)
	}
	for key, value := range section {
		if !isFlagOf(cmd, key) {
			return nil, f.errorf(value, "%s is no setting of %s: no such flag, or one for the command line only",
				key, cmd.CommandPath())
		}
	}
	return section, nil
}

// set gives the flags that have no value yet what keys say.
func (f *file) set(flags *pflag.FlagSet, keys map[string]yaml.Node) error {
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		value, flag := keys[name], flags.Lookup(name)
		if flag == nil || !isOpen(flag) {
			continue
		}
		if err := f.setFlag(flags, flag, value); err != nil {
			return f.errorf(value, "%s: %w", name, err)
		}
	}
	return nil
}

func (f *file) setFlag(flags *pflag.FlagSet, flag *pflag.Flag, value yaml.Node) error {
	list, isList := flag.Value.(pflag.SliceValue)
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		return set(flags, flag, f.at(value), value.Value)
	case value.Kind != yaml.SequenceNode || !isList:
		return errors.New("want one value")
	}
	var texts []string
	if err := value.Decode(&texts); err != nil {
		return errors.New("want a list of values")
	}
	note(flag, f.at(value))
	return list.Replace(texts)
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

// isFlagOf reports whether a command has a flag that may be in a file.
func isFlagOf(cmd *cobra.Command, name string) bool {
	flag := cmp.Or(cmd.Flags().Lookup(name), cmd.InheritedFlags().Lookup(name))
	return flag != nil && isSetting(flag) && name != configFlag
}

// isFlagOfAny is isFlagOf for any of the commands.
func isFlagOfAny(commands map[string]*cobra.Command, name string) bool {
	for _, cmd := range commands {
		if isFlagOf(cmd, name) {
			return true
		}
	}
	return false
}
