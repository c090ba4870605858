package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// taskVariable is the environment variable with the task of a child process, as JSON.
const taskVariable = "TENURE_ABUSE_TASK"

// A task is what a child process does: it attacks, or with a Folder it is a slow server.
type task struct {
	Attack   string // its name
	Folder   string // for the data of the server
	Address  string // of the server, host:port
	Short    bool
	Duration time.Duration // how long the attack goes on
}

// A server with passwords has two users, who may do everything, and one password.
const (
	healthyUser = "healthy"
	malloryUser = "mallory"
	password    = "secret"
	users       = `
users: [{name: healthy, password: "%[1]s"}, {name: mallory, password: "%[1]s"}]
rules: [{users: ["*"], read: ["*"], write: ["*"]}]
`
	// Hashes of the password by bcrypt, with the least cost and with the default.
	cheapHash  = "$2a$04$nQVZ.SoKhIk1Rzg/jOjejeWQNAQ66bzf8.bYTTyOEp/aTdVGVI2Ey"
	costlyHash = "$2a$10$4DPeZ6FvskUa1TU5ODxHSOD85B8er4Ehpt17c3DZnPEKlAKPpU9uK"
)

// beChild returns at once, unless this process has a task: then it does that, and exits.
func beChild() {
	text, ok := os.LookupEnv(taskVariable)
	if !ok {
		return
	}
	var t task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		all := attacks()
		a := all[slices.IndexFunc(all, func(a attack) bool { return a.name == t.Attack })]
		if t.Folder != "" {
			err = a.beServer(t.Folder)
		} else {
			runtime.GOMAXPROCS(1) // see the comment of the command
			err = a.beAttacker(&target{address: t.Address, users: a.users, short: t.Short, duration: t.Duration})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
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

// beAttacker prints which limit the attack passed, if it passed one.
func (a attack) beAttacker(t *target) (err error) {
	defer func() {
		switch end := recover().(type) {
		case nil:
		case breach:
			fmt.Print(string(end))
		case error:
			err = end
		default:
			panic(end)
		}
	}()
	a.run(t)
	return nil
}

// attack runs the attacker until it ends, and returns which limit it passed. It kills an attacker that
// does not end, and returns an error.
func (r *runner) attack(ctx context.Context, a attack, s *serverProcess) (breach string, err error) {
	bounded, cancel := context.WithTimeout(ctx, 5*r.duration+30*time.Second)
	defer cancel()
	cmd, err := childCommand(bounded, task{Attack: a.name, Address: s.address, Short: r.short, Duration: r.duration})
	if err != nil {
		return "", err
	}
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) && s.death() == "" {
		return "", fmt.Errorf("the attacker failed: %w\n%s", err, exit.Stderr)
	}
	return string(out), nil
}

// A serverProcess is `tenure serve`.
type serverProcess struct {
	cmd     *exec.Cmd
	ended   chan struct{}
	address string // host:port
	log     string // path
}

func (r *runner) startServer(ctx context.Context, a attack, folder string) (*serverProcess, error) {
	cmd, err := r.serverCommand(ctx, a, folder)
	if err != nil {
		return nil, err
	}
	s := &serverProcess{cmd: cmd, ended: make(chan struct{}), log: filepath.Join(folder, "log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr, cmd.WaitDelay = log, time.Second
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	said := make(chan string, 1)
	go func() { // ends with the process, for which it waits
		defer close(s.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			select {
			case said <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait()
	}()
	line := ""
	select {
	case line = <-said:
	case <-s.ended:
	case <-time.After(patience):
	}
	_, rest, _ := strings.Cut(line, "://")
	s.address, _, _ = strings.Cut(rest, " ")
	if _, _, err := net.SplitHostPort(s.address); err != nil {
		s.stop()
		text, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("the server did not start; it said %q\n%s", line, text)
	}
	return s, nil
}

func (r *runner) serverCommand(ctx context.Context, a attack, folder string) (*exec.Cmd, error) {
	if a.slowDisk {
		return childCommand(ctx, task{Attack: a.name, Folder: folder})
	}
	arguments := append([]string{"serve", "--memory", "--addr", "127.0.0.1:0"}, a.serve...)
	if a.users {
		hash, path := cheapHash, filepath.Join(folder, "users.yaml")
		if a.costly {
			hash = costlyHash
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, users, hash), 0o600); err != nil {
			return nil, err
		}
		arguments = append(arguments, "--auth", path)
	}
	return exec.CommandContext(ctx, r.tenure, arguments...), nil
}

// stop asks the server to end, and kills it if it does not.
func (s *serverProcess) stop() {
	if s.cmd.Process.Signal(os.Interrupt) == nil { // Windows knows no such signal
		select {
		case <-s.ended:
			return
		case <-time.After(5 * time.Second):
		}
	}
	_ = s.cmd.Process.Kill()
	<-s.ended // bounded: it is killed
}

// deathLine is the line that the runtime of Go prints.
var deathLine = regexp.MustCompile(`(?m)^\[?(panic:|fatal error:|SIGSEGV).{0,70}`)

// death returns why the server has ended, or "" while it runs.
func (s *serverProcess) death() string {
	select {
	case <-s.ended:
	default:
		return ""
	}
	if log, _ := os.ReadFile(s.log); deathLine.Match(log) {
		return string(deathLine.Find(log))
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

// Lines of /proc/{pid}/status: the present resident memory and its peak.
const (
	resident = "VmRSS:"
	peak     = "VmHWM:"
)

// memoryOf returns a value of a process in bytes, or 0 if there is no such process. Other
// systems than Linux do not report the memory of another process: there it returns 0.
func memoryOf(s *serverProcess, line string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(text), line)
	kilobytes, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kilobytes, 10, 64)
	return n << 10
}
