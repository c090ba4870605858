package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
)

const adminHelp = `--admin serves a status page over HTTP: which client leads each name, and why none
does, with JSON (/api/state), metrics for Prometheus (/metrics) and probes
(/healthz, /readyz). It only reads. It has no encryption and no login, so it
listens on this machine only unless --admin-insecure is given.`

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

// A statusPage is the status page of a process, or nil if it has none: all methods accept that.
type statusPage struct {
	node    *admin.Node
	address string // of the page
	told    sync.Once
}

// tell says where the page is, once. The line about the store comes first.
func (p *statusPage) tell(stdout io.Writer) {
	if p != nil {
		p.told.Do(func() { fmt.Fprintf(stdout, "status page on %s\n", p.address) })
	}
}

// start begins to serve the page. stop ends it: the last thing that a process does,
// so that the page shows that it stops.
func (a *adminFlags) start(cmd *cobra.Command, process *process, mode string) (stop func(), err error) {
	if err := a.check(); err != nil || a.addr == "" {
		return func() {}, usage(err)
	}
	page := &statusPage{node: admin.NewNode()}
	version, commit, modified := programVersion()
	listening, err := admin.Listen(admin.Options{
		Addr: a.addr, AllowInsecure: a.insecure, Hosts: a.hosts, Node: page.node, Logger: process.logger,
		About: admin.About{Mode: mode, Version: version, Commit: commit + modified, Values: a.values},
	})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w; choose another with --admin (port 0 takes a free one), or stop the program that uses it", err)
	case err != nil:
		return nil, err
	}
	page.address = listening.URL()
	process.page = page
	stopping := context.AfterFunc(cmd.Context(), page.node.Stop)
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

// describe says where clients find the store, and where its data is.
func (p *statusPage) describe(address, data string) {
	if p != nil {
		p.node.Describe(address, data)
	}
}

// standBy says that another process is active, at the address that active returns; nil: unknown.
func (p *statusPage) standBy(active func() string) {
	if p != nil {
		p.node.StandBy(active)
	}
}

// serve says that this process runs a store.
func (p *statusPage) serve(store admin.Store) {
	if p != nil {
		p.node.Serve(store)
	}
}

// loading says that this process reads the data of its store.
func (p *statusPage) loading() {
	if p != nil {
		p.node.Loading()
	}
}
