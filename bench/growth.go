package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/tenurelock/tenure/bench/internal/growth"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/bench/internal/table"
)

// chartFolder is where docs/performance.md finds the charts.
const chartFolder = "charts"

// runGrowth is the command of `make growth`.
func runGrowth(ctx context.Context, arguments []string, out, progress io.Writer) error {
	options := growth.Options{Progress: progress}
	var write, anyway bool
	var document, charts, only string
	flags := flag.NewFlagSet("bench growth", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.BoolVar(&options.Quick, "quick", false, "small sizes for short times: shows that everything works, and no figures to quote")
	flags.IntVar(&options.Largest, "largest", 0, "leave out sizes above this one; 0 leaves out none")
	flags.StringVar(&only, "only", "", "measure only what has a name that matches this expression: leases, connections, keys, candidates, watchers")
	flags.BoolVar(&write, "write", false, "write the figures into --document and the charts into --charts")
	flags.StringVar(&document, "document", "growth.md", "the file for --write; it has lines between which the figures are")
	flags.StringVar(&charts, "charts", "../docs/"+chartFolder, "the directory for the charts, with --write")
	flags.BoolVar(&anyway, "anyway", false, "write even if other programs use the processors")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("bench growth takes no arguments: %q", flags.Args())
	}
	matches, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	options.Subjects = slices.DeleteFunc(growth.All(), func(s *growth.Subject) bool { return !matches.MatchString(s.Name) })
	if len(options.Subjects) == 0 {
		return fmt.Errorf("--only %q matches nothing: choose from leases, connections, keys, candidates and watchers", only)
	}
	if write && only != "" && !anyway {
		return errors.New("--write with --only would leave the other figures out of the document: say --anyway if that is meant")
	}
	if write {
		// A document that cannot take the figures is found before minutes have passed.
		if err := writeDocument(document, table.Growth, ""); err != nil {
			return err
		}
	}
	have, err := growth.ThisMachine(ctx)
	if err != nil {
		return err
	}
	if err := options.Check(have); err != nil {
		return err
	}
	state, busy, err := lookAround(ctx, progress)
	if err != nil {
		return err
	}
	if err := mayWrite(write, anyway, busy, "in use before the run"); err != nil {
		return err
	}
	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	result, err := measureGrowth(ctx, host, options)
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", machine(ctx, state, result.Others))
	if err := result.Write(&text, chartFolder); err != nil {
		return err
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	if !write {
		return nil
	}
	if err := mayWrite(write, anyway, result.Others, "used by other programs during the run"); err != nil {
		return err
	}
	if err := result.WriteCharts(charts); err != nil {
		return err
	}
	return writeDocument(document, table.Growth, text.String())
}

func measureGrowth(ctx context.Context, host *peer.Host, options growth.Options) (*growth.Result, error) {
	fmt.Fprintln(options.Progress, "building the command tenure")
	if err := host.Build(ctx, peer.TenureCommand); err != nil {
		return nil, err
	}
	return growth.Run(ctx, host, options)
}
