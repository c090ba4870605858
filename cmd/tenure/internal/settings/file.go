package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxFile is how many bytes a configuration file may have.
const maxFile = 1 << 20

// A file is a configuration file that was read. Its names and values are not checked yet.
type file struct {
	name string
	keys []pair
}

// A pair is a key of a mapping, and its value.
type pair struct {
	key   string
	line  int
	value *yaml.Node
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
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return f, nil // only comments
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has several documents; remove all but one", name)
	}
	if f.keys, err = f.pairs(document.Content[0]); err != nil {
		return nil, err
	}
	return f, nil
}

// errorf returns an error about a line of the file.
func (f *file) errorf(line int, format string, arguments ...any) error {
	return fmt.Errorf("%s: %w", f.at(line), fmt.Errorf(format, arguments...))
}

func (f *file) at(line int) string { return fmt.Sprintf("%s:%d", f.name, line) }

// pairs returns what a mapping has.
func (f *file) pairs(node *yaml.Node) ([]pair, error) {
	node = resolve(node)
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return nil, nil
	}
	if node.Kind != yaml.MappingNode {
		return nil, f.errorf(node.Line, "want lines like max-keys: 1000")
	}
	var pairs []pair
	lines := make(map[string]int)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode {
			return nil, f.errorf(key.Line, "a key must be the name of a flag or a command")
		}
		if first, twice := lines[key.Value]; twice {
			return nil, f.errorf(key.Line, "%q is in line %d already; remove one of them", key.Value, first)
		}
		lines[key.Value] = key.Line
		pairs = append(pairs, pair{key: key.Value, line: key.Line, value: resolve(node.Content[i+1])})
	}
	return pairs, nil
}

// resolve returns the node that an alias refers to.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// bind sets the flags of cmd. The names in the file are checked for all commands, so that a
// mistake shows whichever command reads it; values are checked for this one.
func (f *file) bind(cmd *cobra.Command) error {
	commands := commandsOf(cmd.Root())
	var shared, own []pair
	for _, p := range f.keys {
		if p.value.Kind != yaml.MappingNode {
			if !isFlagOfAny(commands, p.key) {
				return f.errorf(p.line, "no command has the flag --%s", p.key)
			}
			shared = append(shared, p)
			continue
		}
		section := commands[p.key]
		if section == nil {
			return f.errorf(p.line, "there is no command %q", p.key)
		}
		pairs, err := f.pairs(p.value)
		if err != nil {
			return err
		}
		for _, p := range pairs {
			if !isFlagOf(section, p.key) {
				return f.errorf(p.line, "%s has no flag --%s", section.CommandPath(), p.key)
			}
		}
		if section == cmd {
			own = pairs
		}
	}
	for _, p := range append(own, shared...) {
		flag := cmd.Flags().Lookup(p.key)
		if flag == nil || !isOpen(flag) {
			continue
		}
		if err := f.set(cmd.Flags(), flag, p); err != nil {
			return f.errorf(p.line, "%s: %w", p.key, err)
		}
	}
	return nil
}

// set gives a flag the value of its key.
func (f *file) set(flags *pflag.FlagSet, flag *pflag.Flag, p pair) error {
	switch {
	case p.value.Kind == yaml.ScalarNode && p.value.Tag == "!!null":
		return errors.New("there is no value; give one, or remove the line")
	case p.value.Kind == yaml.ScalarNode:
		return set(flags, flag, f.at(p.line), p.value.Value)
	case p.value.Kind != yaml.SequenceNode:
		return errors.New("want a value")
	}
	list, ok := flag.Value.(pflag.SliceValue)
	if !ok {
		return errors.New("want one value, and this is a list")
	}
	texts := make([]string, 0, len(p.value.Content))
	for _, node := range p.value.Content {
		if node = resolve(node); node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
			return errors.New("want a list of values")
		}
		texts = append(texts, node.Value)
	}
	if err := list.Replace(texts); err != nil {
		return err
	}
	note(flag, f.at(p.line))
	return nil
}

// commandsOf returns the commands below root by name.
func commandsOf(root *cobra.Command) map[string]*cobra.Command {
	commands := make(map[string]*cobra.Command)
	for _, cmd := range root.Commands() {
		commands[cmd.Name()] = cmd
	}
	return commands
}

// isFlagOf reports whether a command has a flag that may be in a file.
func isFlagOf(cmd *cobra.Command, name string) bool {
	flag := cmd.Flags().Lookup(name)
	if flag == nil {
		flag = cmd.InheritedFlags().Lookup(name)
	}
	return flag != nil && isSetting(flag) && name != configFlag
}

func isFlagOfAny(commands map[string]*cobra.Command, name string) bool {
	for _, cmd := range commands {
		if isFlagOf(cmd, name) {
			return true
		}
	}
	return false
}
