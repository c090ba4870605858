package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

// healthFlags are the flags of health.
type healthFlags struct {
	admin           string
	timeout         time.Duration
	standbyOK, live bool
}

func healthCommand() *cobra.Command {
	var h healthFlags
	health := &cobra.Command{
		Use:   "health",
		Short: "Ask a status page whether its store answers: a probe for supervisors",
		Long: `Ask the status page of serve or attach whether the process answers requests, and end with 0
if it does and 103 if it does not.`,
		Example: "health --admin 127.0.0.1:8080",
		Args:    Arguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if h.standbyOK && h.live || h.admin == "" {
				return usagef("give --admin with the address of a status page, and --standby-ok or --live, not both")
			}
			ctx, cancel := within(cmd.Context(), "timeout", h.timeout)
			defer cancel()
			return h.ask(ctx, cmd.OutOrStdout())
		},
	}
	flags := health.Flags()
	flags.StringVar(&h.admin, "admin", "", "address of the status page, such as 127.0.0.1:8080")
	flags.DurationVar(&h.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	flags.BoolVar(&h.standbyOK, "standby-ok", false, "a process that stands by is healthy, too")
	flags.BoolVar(&h.live, "live", false, "ask only whether the process works, loading and standing by included")
	return health
}

// ask asks the status page, without a proxy of the environment: a probe on one machine must not depend on
// another one.
func (h *healthFlags) ask(ctx context.Context, out io.Writer) error {
	at, good := url.URL{Scheme: "http", Host: h.admin, Path: "/readyz"}, "ready"
	if strings.HasPrefix(h.admin, ":") { // as serve listens on all addresses
		at.Host = "127.0.0.1" + h.admin
	}
	if h.live {
		at.Path, good = "/healthz", "ok"
	}
	if h.standbyOK {
		at.RawQuery = "standby=ok"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return usagef("--admin: %w; write it like 127.0.0.1:8080", err)
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		return exitWith(exitUnreachable, fmt.Errorf("the status page does not answer: %w: is its address %s?", err, at.Host))
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // what has come says more than the error
	line, _, _ := strings.Cut(string(text), "\n")
	switch {
	case answer.StatusCode == http.StatusOK && strings.HasPrefix(line, good):
		_, err = fmt.Fprintln(out, output.Clean(line))
		return err
	case answer.StatusCode == http.StatusServiceUnavailable:
		return exitWith(exitUnreachable, errors.New(line))
	}
	return exitWith(exitUnreachable, fmt.Errorf("%s answers %q: is that the status page of tenure? %.200q", at.Host, answer.Status, line))
}
