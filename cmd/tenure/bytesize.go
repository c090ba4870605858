package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// byteSize is a flag for a number of bytes: 536870912, 512MiB or 0.5GiB.
type byteSize int64

var _ pflag.Value = (*byteSize)(nil)

func byteSizeFlag(flags *pflag.FlagSet, at *int64, name, usage string) {
	flags.Var((*byteSize)(at), name, usage)
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

var errByteSize = errors.New("want a number of bytes, like 536870912, 512MiB or 2GiB")

// Set takes a number with one of the units B, KiB, MiB, GiB and TiB, or none.
func (b *byteSize) Set(text string) error {
	for _, unit := range byteUnits {
		digits, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		digits = strings.TrimSpace(digits)
		if whole, err := strconv.ParseInt(digits, 10, 64); err == nil {
			if whole < 0 {
				return errors.New("it is negative")
			}
			if whole > math.MaxInt64/unit.bytes {
				return errors.New("there is no such number of bytes")
			}
			*b = byteSize(whole * unit.bytes)
			return nil
		}
		part, err := strconv.ParseFloat(digits, 64)
		if err != nil || unit.bytes == 1 || !(part >= 0 && part*float64(unit.bytes) < 1<<62) {
			return errByteSize
		}
		*b = byteSize(part * float64(unit.bytes))
		return nil
	}
	return errByteSize
}

// String returns the number with the largest unit that it is a multiple of.
func (b *byteSize) String() string {
	for _, unit := range byteUnits {
		if *b != 0 && int64(*b)%unit.bytes == 0 && unit.bytes > 1 {
			return fmt.Sprintf("%d%s", int64(*b)/unit.bytes, unit.name)
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type is what --help says that the flag takes.
func (b *byteSize) Type() string { return "bytes" }
