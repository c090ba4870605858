package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// A byteSize is a flag for a number of bytes, such as 536870912, 512MiB or 0.5GiB.
type byteSize int64

var _ pflag.Value = (*byteSize)(nil)

// Bytes adds a flag for a number of bytes, alone or with a unit, such as 512MiB. The default is what at
// points to.
func Bytes(flags *pflag.FlagSet, at *int64, name, usage string) {
	flags.Var((*byteSize)(at), name, usage)
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

var errByteSize = errors.New("want a number of bytes, like 536870912, 512MiB or 2GiB")

// Set parses a number, alone or with one of the units B, KiB, MiB, GiB and TiB.
func (b *byteSize) Set(text string) error {
	for _, unit := range byteUnits {
		digits, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		digits = strings.TrimSpace(digits)
		if whole, err := strconv.ParseInt(digits, 10, 64); err == nil {
			if whole < 0 {
				return errors.New("want a number of bytes that is not negative")
			}
			if whole > math.MaxInt64/unit.bytes {
				return errors.New("want a smaller number of bytes")
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

// String returns the number in the largest unit that divides it.
func (b *byteSize) String() string {
	for _, unit := range byteUnits {
		if *b != 0 && int64(*b)%unit.bytes == 0 && unit.bytes > 1 {
			return fmt.Sprintf("%d%s", int64(*b)/unit.bytes, unit.name)
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type is the kind of value in --help.
func (b *byteSize) Type() string { return "bytes" }
