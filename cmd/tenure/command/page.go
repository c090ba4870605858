package command

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
)

// pageFlags are the flags of the status page of serve and attach.
type pageFlags struct {
	addr     string
	hosts    []string
	insecure bool
	values   bool
}

func (f *pageFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "TCP address for a status page with metrics and probes, such as 127.0.0.1:8080")
	flags.StringSliceVar(&f.hosts, "admin-host", nil, "name, beside localhost, for which the status page answers")
	flags.BoolVar(&f.insecure, "admin-insecure", false, "let other machines read the status page, which has no login")
	flags.BoolVar(&f.values, "admin-values", false, "show the values of leases on the status page")
}

// start begins to serve the page. stop ends it: the last thing that a process does,
// so that the page shows that it stops.
func (f *pageFlags) start(cmd *cobra.Command, process *process, mode string) (stop func(), err error) {
	if f.addr == "" {
		if len(f.hosts) > 0 || f.insecure || f.values {
			err = usage(errors.New("--admin-host, --admin-insecure and --admin-values are about the status page; give --admin too"))
		}
		return func() {}, err
	}
	addr, err := adminclient.ListenAddress(f.addr)
	if err != nil {
		return nil, usage(fmt.Errorf("--admin: %w", err))
	}
	if err := admin.CheckAddress(addr, f.insecure); err != nil {
		return nil, usage(err)
	}
	listening, err := admin.Listen(admin.Options{
		Addr: addr, AllowInsecure: f.insecure, Hosts: f.hosts, Node: process.node, Logger: process.logger,
		About: admin.About{Mode: mode, Version: programVersion(), Commit: commit, Values: f.values},
	})
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	process.page = listening.URL()
	stopping := context.AfterFunc(cmd.Context(), process.node.Stop)
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := listening.Serve(ctx); err != nil {
			process.logger.Error("the store goes on without its status page", "error", err)
		}
	})
	return func() {
		stopping()
		cancel()
		tasks.Wait()
	}, nil
}
