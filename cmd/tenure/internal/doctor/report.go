package doctor

// Status is the result of a step.
type Status string

// The results.
const (
	OK      Status = "ok"
	Warning Status = "warning" // it works, but something should change
	Failed  Status = "failed"
	Skipped Status = "skipped" // it does not apply, or was not asked for
)

// Kind says what sort of failure it is, for exit codes.
type Kind string

// The kinds of failures.
const (
	Unreachable Kind = "unreachable" // no broker or no store can be reached
	Refused     Kind = "refused"     // the credentials or the rights
	Usage       Kind = "usage"       // a flag, or a file that it names
	Wrong       Kind = "wrong"       // anything else: a clock, an answer that makes no sense
)

// Step is one step.
type Step struct {
	// Name is what was looked at, such as "connection", and Broker where.
	Name   string `json:"name"`
	Broker string `json:"broker,omitempty"`
	Status Status `json:"status"`
	// Found is what was found, and Cure what to do about it. Neither has more than one line. They may
	// quote what a broker or a store sent.
	Found string `json:"found"`
	Cure  string `json:"cure,omitempty"`
	// Kind is set if the step failed.
	Kind Kind `json:"kind,omitempty"`
}

// Report is the result of all steps.
type Report struct {
	Address  string `json:"address"`
	ClientID string `json:"clientId"`
	Steps    []Step `json:"steps"`
	// Identity is what the store calls its data; empty: it did not say.
	Identity string `json:"identity,omitempty"`
}

// FirstFailure returns the first step that failed, or nil.
func (r *Report) FirstFailure() *Step {
	for i := range r.Steps {
		if r.Steps[i].Status == Failed {
			return &r.Steps[i]
		}
	}
	return nil
}

// Warnings counts the steps with a warning.
func (r *Report) Warnings() (count int) {
	for _, step := range r.Steps {
		if step.Status == Warning {
			count++
		}
	}
	return count
}

func ok(name, found string) Step { return Step{Name: name, Status: OK, Found: found} }

func warning(name, found, cure string) Step {
	return Step{Name: name, Status: Warning, Found: found, Cure: cure}
}

func failed(kind Kind, name, found, cure string) Step {
	return Step{Name: name, Status: Failed, Kind: kind, Found: found, Cure: cure}
}

func skipped(name, why string) Step { return Step{Name: name, Status: Skipped, Found: why} }
