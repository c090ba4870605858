package command

import (
	"context"
	"net"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/cmd/tenure/internal/electapi"
	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/lease"
)

// electFlags are the flags of elect.
type electFlags struct {
	candidateFlags
	listen string
	socket net.Listener // from listen
}

// electCommand is "tenure elect".
func electCommand() *cobra.Command {
	e := electFlags{candidateFlags: candidateFlags{holdFlags: holdFlags{warn: true}}}
	cmd := &cobra.Command{
		Use:   "elect NAME",
		Short: "Take part in an election for programs that stay up, and tell them who leads",
		Long: `Take part in an election for programs that stay up, in any language, and ask on a socket of this
machine whether it leads. docs/elect.md has the rules, and clients in Python, Node and C#.`,
		Example: "elect press-7/active --listen unix:/run/press/elect --ttl 4s --warn 1s\n" +
			"elect press-7/active --listen 127.0.0.1:8090 --watchdog /dev/watchdog",
		Args: Arguments,
		RunE: func(cmd *cobra.Command, arguments []string) (err error) {
			if err := e.check(); err != nil {
				return Usage(err)
			}
			if e.socket, err = electapi.Listen(cmd.Context(), e.listen); err != nil {
				return usagef("--listen: %w", err)
			}
			defer e.socket.Close()
			return e.hold(cmd, arguments, 0, e.run)
		},
	}
	e.register(cmd.Flags())
	cmd.Flags().DurationVar(&e.grace, "warn", 0,
		"how long before the deadline programs must drain; default: a tenth of --ttl")
	cmd.Flags().StringVar(&e.listen, "listen", "", "where programs ask: unix:PATH, or host:port of this machine")
	return cmd
}

// run campaigns, and answers programs until the last term has ended.
func (e *electFlags) run(ctx, _ context.Context, p *holderProcess, o lease.Options) error {
	openDog := func() (*watchdog.Dog, error) { return e.watchdog.Open(e.ttl, p.logger) }
	api := electapi.New(electapi.Options{Watchdog: openDog, Logger: p.logger})
	options := e.options(o)
	options.Observer = api.Observe
	elector, err := election.New(p.client, p.name, options)
	if err != nil {
		return err
	}
	api.Follow(elector)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks, electing := errgroup.WithContext(ctx)
	tasks.Go(func() error { return api.Serve(serving, e.socket) })
	tasks.Go(func() error {
		defer stop()
		return elector.Run(electing, api.Lead)
	})
	err = tasks.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
