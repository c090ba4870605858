package command

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/server/activity"
)

const adminHelp = `--admin serves a status page over HTTP, with JSON (/api/state), metrics for
Prometheus (/metrics) and probes (/healthz, /readyz). It has no encryption and no
login, so it listens on this machine only unless --admin-insecure is given.`

// statusHelp is the text of --admin of the commands that ask a status page.
const statusHelp = "address of a status page, as serve and attach have in the same flag, such as 127.0.0.1:8080 or http://127.0.0.1:8080"

// adminFlags are the flags of the status page.
type adminFlags struct {
	addr     string
	hosts    []string
	insecure bool
	values   bool
}

func (a *adminFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.addr, "admin", "", "TCP address for the status page, such as 127.0.0.1:8080 or http://127.0.0.1:8080; port 0 takes a free one; default: no page")
	flags.StringSliceVar(&a.hosts, "admin-host", nil, "name, beside localhost and IP addresses, for which the status page answers; may be repeated")
	flags.BoolVar(&a.insecure, "admin-insecure", false, "let other machines read the status page")
	flags.BoolVar(&a.values, "admin-values", false, "show the values of leases on the status page; they contain what holders chose to tell")
}

// check refuses flags that do nothing, and addresses that others reach. It leaves host:port in addr.
func (a *adminFlags) check() error {
	if a.addr == "" && (len(a.hosts) > 0 || a.insecure || a.values) {
		return errors.New("--admin-host, --admin-insecure and --admin-values are about the status page; give --admin too")
	}
	if a.addr == "" {
		return nil
	}
	addr, err := adminclient.ListenAddress(a.addr)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	a.addr = addr
	return admin.CheckAddress(a.addr, a.insecure)
}

// start begins to serve the page. stop ends it: the last thing that a process does,
// so that the page shows that it stops.
func (a *adminFlags) start(cmd *cobra.Command, process *process, mode string) (stop func(), err error) {
	if err := a.check(); err != nil || a.addr == "" {
		return func() {}, usage(err)
	}
	recorder := admin.NewRecorder()
	version, commit, modified := programVersion()
	listening, err := admin.Listen(admin.Options{
		Addr: a.addr, AllowInsecure: a.insecure, Hosts: a.hosts, Node: process.node, Recorder: recorder, Logger: process.logger,
		About: admin.About{Mode: mode, Version: version, Commit: commit + modified, Values: a.values},
	})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w; choose another with --admin (port 0 takes a free one), or stop the program that uses it", err)
	case err != nil:
		return nil, err
	}
	process.recorder, process.page = recorder, listening.URL()
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

// observe returns what takes the events of a store; nil if there is no page.
func (p *process) observe() func(activity.Event) {
	if p.recorder == nil {
		return nil
	}
	return p.recorder.Observe
}
