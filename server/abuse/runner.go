package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// A runner runs attacks, one at a time or several side by side.
type runner struct {
	tenure   string // the command
	scratch  string // a folder for files
	short    bool
	duration time.Duration
	slack    int64  // bytes that may stay beyond 1.5 times what was there before
	flags    string // what `tenure serve --help` prints

	cheap, costly credentials // hashes of the passwords
}

type credentials struct{ healthy, mallory string }

const (
	// freedWithin is how long the server may take to give memory back.
	freedWithin = 30 * time.Second
	// quiet is the p99 of the healthy client on a machine that has nothing else to do. A full
	// run waits for that before an attack, within reason.
	quiet = 10 * time.Millisecond
	// patience bounds the start and the stop of a process.
	patience = 20 * time.Second
)

// complete sets the defaults of an attack.
func (r *runner) complete(ctx context.Context) error {
	if r.duration == 0 {
		r.duration = fullDuration
		if r.short {
			r.duration = shortDuration
		}
	}
	out, err := exec.CommandContext(ctx, r.tenure, "serve", "--help").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s serve --help: %w\n%s", r.tenure, err, out)
	}
	r.flags = string(out)
	if r.cheap, err = hash(bcrypt.MinCost); err != nil {
		return err
	}
	r.costly, err = hash(bcrypt.DefaultCost)
	return err
}

func hash(cost int) (c credentials, err error) {
	healthy, err := bcrypt.GenerateFromPassword([]byte(healthyPassword), cost)
	if err != nil {
		return c, err
	}
	mallory, err := bcrypt.GenerateFromPassword([]byte(malloryPassword), cost)
	return credentials{string(healthy), string(mallory)}, err
}

// measure is how long the healthy client is measured before an attack, and after it.
func (r *runner) measure() time.Duration {
	if r.short {
		return 300 * time.Millisecond
	}
	return 3 * time.Second
}

// run runs one attack against a server of its own. The error says why it could not.
func (r *runner) run(ctx context.Context, a attack) (*row, error) {
	a = a.completed()
	folder, err := os.MkdirTemp(r.scratch, "attack-")
	if err != nil {
		return nil, err
	}
	s, err := r.startServer(ctx, a, folder)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	h, err := r.startHealthy(ctx, a, s)
	if err != nil {
		return nil, err
	}
	defer h.stop()
	row := &row{attack: a}
	_ = sleep(ctx, r.measure()/3) // what a connection costs at first is no one's attack
	if _, err := h.next(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		_ = sleep(ctx, r.measure())
		if row.before, err = h.next(); err != nil {
			return nil, err
		}
		if r.short || row.before.P99 < quiet || try == 10 {
			break
		}
	}
	row.memoryBefore = memoryOf(s.cmd.Process.Pid, resident)

	begin := time.Now()
	if row.outcome, err = r.attack(ctx, a, s); err != nil {
		return nil, err
	}
	_ = sleep(ctx, r.measure()-time.Since(begin)) // what a short attack did may show later
	if row.during, err = h.next(); err != nil {
		return nil, err
	}
	over := time.Now()
	row.peak = memoryOf(s.cmd.Process.Pid, peak)
	if row.after, err = r.aftermath(ctx, s, h); err != nil {
		return nil, err
	}
	row.memoryAfter, row.freedAfter = r.awaitMemory(ctx, s, row.memoryBefore, over)
	row.death = s.death()
	row.log = s.logSize()
	row.judge(r)
	return row, ctx.Err()
}

// aftermath measures the healthy client after an attack. It repeats the measurement for a while if
// the client is not served at once, since the machine may be busy.
func (r *runner) aftermath(ctx context.Context, s *serverProcess, h *healthyProcess) (p phase, err error) {
	for begin := time.Now(); ; {
		_ = sleep(ctx, r.measure())
		if p, err = h.next(); err != nil || p.Renewals > p.Failed {
			return p, err
		}
		if s.death() != "" || ctx.Err() != nil || time.Since(begin) > patience {
			return p, nil
		}
	}
}

// attack runs the attacker until it ends. It kills an attacker that does not end and returns an
// error.
func (r *runner) attack(ctx context.Context, a attack, s *serverProcess) (outcome, error) {
	limit := 4*r.duration + 20*time.Second
	t := task{Attack: a.name, Address: s.address, Users: a.users, Short: r.short, Duration: r.duration, Limit: limit}
	bounded, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	cmd, err := childCommand(bounded, t)
	if err != nil {
		return outcome{}, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var o outcome
	if decoding := json.Unmarshal(out.Bytes(), &o); err != nil || decoding != nil {
		return o, fmt.Errorf("the attacker failed: %w\n%s", errors.Join(err, decoding), errs.String())
	}
	if o.Error != "" && s.death() == "" {
		return o, errors.New(o.Error)
	}
	return o, nil
}

// awaitMemory waits, for freedWithin at most, until the server has freed the memory of an attack.
// It returns the memory then and the time that it took, or zeros where memory cannot be measured.
func (r *runner) awaitMemory(ctx context.Context, s *serverProcess, before int64, over time.Time) (now int64, took time.Duration) {
	for {
		now = memoryOf(s.cmd.Process.Pid, resident)
		took = time.Since(over)
		if now == 0 || before == 0 || now <= r.allowed(before) || took >= freedWithin || s.death() != "" {
			return now, took
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return now, took
		}
	}
}

// allowed is how many bytes the server may have after an attack.
func (r *runner) allowed(before int64) int64 { return before*3/2 + r.slack }

// childCommand returns a command that runs this program again for a task.
func childCommand(ctx context.Context, t task) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// A serverProcess is `tenure serve`.
type serverProcess struct {
	cmd     *exec.Cmd
	address string // host:port
	log     string // path
	ended   chan struct{}
}

func (r *runner) startServer(ctx context.Context, a attack, folder string) (*serverProcess, error) {
	arguments := []string{"serve", "--addr", "127.0.0.1:0"}
	for _, flag := range a.serve {
		name, optional := strings.CutPrefix(flag, "?")
		if !optional || strings.Contains(r.flags, strings.SplitN(name, "=", 2)[0]+" ") {
			arguments = append(arguments, name)
		}
	}
	if a.users {
		hashes := r.cheap
		if a.costly {
			hashes = r.costly
		}
		rules := a.rules
		if rules == "" {
			rules = `  - {users: ["*"], read: ["*"], write: ["*"]}` + "\n"
		}
		text := fmt.Sprintf("users:\n  - {name: %s, password: %s}\n  - {name: %s, password: %s}\nrules:\n%s",
			healthyUser, hashes.healthy, malloryUser, hashes.mallory, rules)
		path := filepath.Join(folder, "users.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		arguments = append(arguments, "--auth", path)
	}
	s := &serverProcess{log: filepath.Join(folder, "log"), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	program := r.tenure
	if a.files > 0 {
		if program, arguments, err = withFewFiles(a.files, program, arguments); err != nil {
			return nil, err
		}
	}
	s.cmd = exec.CommandContext(ctx, program, arguments...)
	s.cmd.Stderr = log
	s.cmd.WaitDelay = time.Second
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	first := make(chan string, 1)
	go func() { // ends with the process, for which it waits
		defer close(s.ended)
		line, _ := lines.ReadString('\n')
		first <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = s.cmd.Wait()
	}()
	var line string
	select {
	case line = <-first:
	case <-time.After(patience):
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), "://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		s.stop()
		text, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("the server did not start; it said %q\n%s", line, text)
	}
	s.address = address
	return s, nil
}

// stop ends the server, and kills it if it does not end.
func (s *serverProcess) stop() {
	if s.cmd.Process.Signal(os.Interrupt) == nil { // Windows knows no such signal
		select {
		case <-s.ended:
			return
		case <-time.After(5 * time.Second):
		}
	}
	_ = s.cmd.Process.Kill()
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}

// death returns why the server has ended, or "" while it runs.
func (s *serverProcess) death() string {
	select {
	case <-s.ended:
	default:
		return ""
	}
	log, err := os.Open(s.log)
	if err != nil {
		return "ended"
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		for _, sign := range []string{"panic:", "fatal error:", "runtime: out of memory", "SIGSEGV"} {
			if strings.HasPrefix(lines.Text(), sign) || strings.HasPrefix(lines.Text(), "["+sign) {
				return cut(lines.Text(), 80)
			}
		}
	}
	return s.cmd.ProcessState.String()
}

func (s *serverProcess) logSize() int64 {
	info, err := os.Stat(s.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// A healthyProcess is the healthy client.
type healthyProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	pipe   *os.File
	out    *bufio.Reader // of pipe
	errors *bytes.Buffer
	waited chan struct{}
}

func (r *runner) startHealthy(ctx context.Context, a attack, s *serverProcess) (*healthyProcess, error) {
	cmd, err := childCommand(ctx, task{Healthy: true, Address: s.address, Users: a.users, Short: r.short})
	if err != nil {
		return nil, err
	}
	h := &healthyProcess{cmd: cmd, errors: new(bytes.Buffer), waited: make(chan struct{})}
	cmd.Stderr = h.errors
	if h.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// A pipe of our own: Wait closes the one of StdoutPipe before all is read.
	out, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, h.pipe, h.out = write, out, bufio.NewReader(out)
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	go func() {
		defer close(h.waited)
		_ = cmd.Wait()
	}()
	_ = h.pipe.SetReadDeadline(time.Now().Add(patience)) // fails where pipes have none: the dial is bounded too
	if line, err := h.out.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		h.stop()
		return nil, fmt.Errorf("the healthy client did not start: %w\n%s", err, h.errors)
	}
	return h, nil
}

// next ends a phase of the healthy client and returns it.
func (h *healthyProcess) next() (p phase, err error) {
	if _, err := io.WriteString(h.in, "next\n"); err != nil {
		return p, fmt.Errorf("the healthy client has ended: %w", err)
	}
	_ = h.pipe.SetReadDeadline(time.Now().Add(patience))
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		return p, fmt.Errorf("the healthy client has ended: %w", err)
	}
	return p, json.Unmarshal(line, &p)
}

func (h *healthyProcess) stop() {
	_ = h.in.Close()
	defer h.pipe.Close()
	select {
	case <-h.waited:
		return
	case <-time.After(5 * time.Second):
	}
	_ = h.cmd.Process.Kill()
	select {
	case <-h.waited:
	case <-time.After(patience):
	}
}

// sleep waits for a duration or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func cut(text string, limit int) string {
	if len(text) > limit {
		return text[:limit] + "…"
	}
	return text
}
