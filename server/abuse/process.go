package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// A process is a child process that prints lines.
type process struct {
	cmd   *exec.Cmd
	lines chan string // of its standard output; one that finds no room is dropped
	ended chan struct{}
}

func start(cmd *exec.Cmd) (*process, error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, lines: make(chan string, 1), ended: make(chan struct{})}
	go func() { // ends with the process, for which it waits
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			select {
			case p.lines <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait()
	}()
	return p, nil
}

// line returns the next line, or "" if the process ends or prints none in time.
func (p *process) line() string {
	select {
	case line := <-p.lines:
		return line
	case <-p.ended:
	case <-time.After(patience):
	}
	return ""
}

// end asks the process to end, and kills it if it does not.
func (p *process) end(ask func() error) {
	if ask() == nil {
		select {
		case <-p.ended:
			return
		case <-time.After(5 * time.Second):
		}
	}
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
}

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
	return cmd, nil
}

// A serverProcess is `tenure serve`.
type serverProcess struct {
	*process
	address string // host:port
	log     string // path
}

func (r *runner) startServer(ctx context.Context, a attack, folder string) (*serverProcess, error) {
	arguments := append([]string{"serve", "--memory", "--addr", "127.0.0.1:0"}, a.serve...)
	if a.users {
		path := filepath.Join(folder, "users.yaml")
		if err := a.writeUsers(path); err != nil {
			return nil, err
		}
		arguments = append(arguments, "--auth", path)
	}
	if a.key != "" {
		flags, err := a.writeCertificate(folder)
		if err != nil {
			return nil, err
		}
		arguments = append(arguments, flags...)
	}
	path := filepath.Join(folder, "log")
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	program := r.tenure
	if a.files > 0 {
		if runtime.GOOS == "windows" { // it has no such limit
			return nil, errors.ErrUnsupported
		}
		script := "ulimit -n " + strconv.Itoa(a.files) + ` && exec "$0" "$@"`
		program, arguments = "/bin/sh", append([]string{"-c", script, program}, arguments...)
	}
	cmd := exec.CommandContext(ctx, program, arguments...)
	if a.commit > 0 {
		if cmd, err = childCommand(ctx, task{Folder: folder, Commit: a.commit, Users: a.users}); err != nil {
			return nil, err
		}
	}
	cmd.Stderr = log
	p, err := start(cmd)
	if err != nil {
		return nil, err
	}
	line := p.line()
	_, address, ok := strings.Cut(line, "://")
	address, _, _ = strings.Cut(address, " ")
	s := &serverProcess{process: p, address: address, log: path}
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		s.stop()
		text, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("the server did not start; it said %q\n%s", line, text)
	}
	return s, nil
}

// writeUsers writes the file with the users and the rules.
func (a attack) writeUsers(path string) error {
	cost := bcrypt.MinCost
	if a.costly {
		cost = bcrypt.DefaultCost
	}
	text := "users:\n"
	for user, password := range map[string]string{healthyUser: healthyPassword, malloryUser: malloryPassword} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("  - {name: %s, password: %s}\n", user, hash)
	}
	text += "rules:\n" + cmp.Or(a.rules, `  - {users: ["*"], read: ["*"], write: ["*"]}`+"\n")
	return os.WriteFile(path, []byte(text), 0o600)
}

func (s *serverProcess) stop() {
	s.end(func() error { return s.cmd.Process.Signal(os.Interrupt) }) // Windows knows no such signal
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
	*process
	in io.WriteCloser
}

func (r *runner) startHealthy(ctx context.Context, a attack, s *serverProcess) (*healthyProcess, error) {
	cmd, err := childCommand(ctx, task{Healthy: true, Address: s.address, Users: a.users, Encrypted: a.key != "", Changes: a.change > 0, Short: r.short})
	if err != nil {
		return nil, err
	}
	var failure bytes.Buffer
	cmd.Stderr = &failure
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p, err := start(cmd)
	if err != nil {
		return nil, err
	}
	h := &healthyProcess{process: p, in: in}
	if h.line() != "ready" {
		h.stop()
		return nil, fmt.Errorf("the healthy client did not start\n%s", failure.String())
	}
	return h, nil
}

// next ends a phase of the healthy client and returns it.
func (h *healthyProcess) next() (p phase, err error) {
	_, err = io.WriteString(h.in, "next\n")
	if err == nil {
		err = json.Unmarshal([]byte(h.line()), &p)
	}
	if err != nil {
		return p, fmt.Errorf("the healthy client has ended: %w", err)
	}
	return p, nil
}

func (h *healthyProcess) stop() { h.end(h.in.Close) }

// Lines of /proc/{pid}/status: the present resident memory and its peak.
const (
	resident = "VmRSS:"
	peak     = "VmHWM:"
)

// memoryOf returns a value of a process in bytes, or 0 if there is no such process. Other
// systems than Linux do not report the memory of another process: there it returns 0.
func memoryOf(pid int, line string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), line)
	kilobytes, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(kilobytes, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}
