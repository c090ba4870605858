package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Windows has no signals between processes. A signal to end becomes CTRL_BREAK, which a console
// program may handle; all others are not passed on. Everything that descends from the guard is in
// its job object, which ends all of them when the guard ends.
const (
	terminateSignal = int(syscall.SIGTERM)
	killSignal      = int(syscall.SIGKILL)
	continueSignal  = 0

	errTooLarge = windows.ERROR_FILENAME_EXCED_RANGE // what CreateProcess says of a long command line, too
)

var guardIgnores = []os.Signal{os.Interrupt, syscall.SIGTERM}

// now is the time on a clock that supervisor and guard share.
func now() time.Duration { return windows.DurationSinceBoot() }

func executable() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func becomeSubreaper() {} // there is none

// checkTree returns nil: processes are found by their job.
func checkTree() error { return nil }

func children() []int     { return nil }
func childHasEnded() bool { return false }
func takeResult(int) bool { return false }

// channelArguments is how many arguments of the guard say where its end of the channel is.
const channelArguments = 2

// channel is one end of two pipes between supervisor and guard.
type channel struct{ in, out *os.File }

func (c *channel) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *channel) Write(b []byte) (int, error) { return c.out.Write(b) } // a pipe takes more than is ever under way
func (c *channel) Close() error                { return errors.Join(c.in.Close(), c.out.Close()) }

// writeWith is Write: the guard has no use for the connection.
func (c *channel) writeWith(p []byte, _ syscall.RawConn) error {
	_, _ = c.Write(p)
	return nil
}

// endReading does nothing: all that could have the guard's ends has ended with its job.
func (c *channel) endReading() {}

// awaitLoss does not return: there is no connection.
func (c *channel) awaitLoss() { select {} }

// connect makes the channel to a guard that is not started yet. theirs are the guard's ends, which
// it finds by the handles in its arguments.
func connect(cmd *exec.Cmd) (ours *channel, theirs []*os.File, err error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	arguments := []string{guardName}
	for _, file := range []*os.File{theirIn, theirOut} {
		handle := syscall.Handle(file.Fd())
		arguments = append(arguments, strconv.FormatUint(uint64(handle), 10))
		cmd.SysProcAttr.AdditionalInheritedHandles = append(cmd.SysProcAttr.AdditionalInheritedHandles, handle)
	}
	cmd.Args = append(arguments, cmd.Args[1:]...)
	return &channel{ourIn, ourOut}, []*os.File{theirIn, theirOut}, nil
}

// letInherit lets the process that is started next inherit a file, and returns the number that it
// has there.
func letInherit(file *os.File) (number string, err error) {
	handle := windows.Handle(file.Fd())
	return strconv.FormatUint(uint64(handle), 10), windows.SetHandleInformation(handle, windows.HANDLE_FLAG_INHERIT, windows.HANDLE_FLAG_INHERIT)
}

// openChannel returns the guard's end of the channel.
func openChannel() (*channel, error) {
	if len(os.Args) <= 1+channelArguments {
		return nil, errors.New("there are no handles")
	}
	var files [channelArguments]*os.File
	for i := range files {
		handle, err := strconv.ParseUint(os.Args[1+i], 10, 64)
		if err != nil {
			return nil, err
		}
		_ = windows.SetHandleInformation(windows.Handle(handle), windows.HANDLE_FLAG_INHERIT, 0) // not for the program
		files[i] = os.NewFile(uintptr(handle), "supervisor")
	}
	return &channel{files[0], files[1]}, nil
}

// becomeProgram is for systems on which a process can become another program.
func becomeProgram() int { return CodeNotExecutable }

// processTree is the child and its descendants, as their guard sees them.
type processTree struct {
	pid     int
	ended   bool // the child ended
	changed chan os.Signal
	job     windows.Handle
	what    program
	results chan Status // buffered
}

// adopt puts this process, and with it all its descendants, into a job object that ends them all
// when its only handle is closed: when this process ends, however it does.
func (t *processTree) adopt() error {
	t.changed, t.results = make(chan os.Signal, 1), make(chan Status, 1)
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return os.NewSyscallError("CreateJobObject", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		return os.NewSyscallError("SetInformationJobObject", err)
	}
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		return os.NewSyscallError("AssignProcessToJobObject", err)
	}
	t.job = job
	return nil
}

// makeProcess only notes the program: a process starts with startProgram.
func (t *processTree) makeProcess(p program) error {
	t.pid, t.what = os.Getpid(), p
	return nil
}

// startProgram starts the program.
func (t *processTree) startProgram() {
	cmd := &exec.Cmd{
		Path: t.what.path, Args: t.what.args,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP},
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "tenure: cannot start %s: %v\n", t.what.path, err)
		t.finish(Status{Code: startFailure(err)})
		return
	}
	_, _ = os.Stdin.Close(), os.Stdout.Close()
	t.pid = cmd.Process.Pid
	go func() { // ends with the program, or with this process
		_ = cmd.Wait()
		t.finish(Status{Code: cmd.ProcessState.ExitCode()})
	}()
}

func (t *processTree) finish(s Status) {
	t.results <- s
	select {
	case t.changed <- os.Interrupt:
	default:
	}
}

func (t *processTree) signalChild(int) {}

func (t *processTree) signalGroup(int) {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.pid))
}

// terminateAll does nothing: CTRL_BREAK has reached the group of the program that ended.
func (t *processTree) terminateAll() {}

// killAll kills all processes of the job but this one.
func (t *processTree) killAll() (stuck string) {
	for _, pid := range t.members() {
		process, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, pid)
		if err != nil {
			continue // it has ended
		}
		if err := windows.TerminateProcess(process, uint32(128+killSignal)); err != nil && stuck == "" {
			stuck = fmt.Sprintf("process %d: %v", pid, err)
		}
		_ = windows.CloseHandle(process)
	}
	return stuck
}

// members returns the processes of the job but this one.
func (t *processTree) members() (pids []uint32) {
	// JOBOBJECT_BASIC_PROCESS_ID_LIST: two numbers, and the ids.
	var list struct {
		assigned, listed uint32
		ids              [4096]uintptr
	}
	if err := windows.QueryInformationJobObject(t.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil); err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
		return []uint32{0} // not known, so not empty
	}
	for _, id := range list.ids[:min(int(list.listed), len(list.ids))] {
		if int(id) != os.Getpid() {
			pids = append(pids, uint32(id))
		}
	}
	return pids
}

// reap notes the end of the child, and whether anything is left.
func (g *guard) reap() {
	select {
	case status := <-g.results:
		g.end(status, "")
	default:
	}
	g.childless = g.ended && len(g.members()) == 0
}

// killLeft does nothing: the job of a guard that ended has ended with it.
func killLeft(int, bool, func(string)) {}

// caughtSignals are the signals that a supervisor catches.
var caughtSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// CatchSignals returns a channel that gets the signals that a supervisor catches, until stop is called.
func CatchSignals() (caught <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, caughtSignals...)
	return signals, func() { signal.Stop(signals) }
}

// IsHangup returns false: the end of a console is SIGTERM here.
func IsHangup(os.Signal) bool { return false }

// HasTerminal returns false: no signal says that a console was closed.
func HasTerminal() bool { return false }

// EndByInterrupt does nothing: a process ends with a code here.
func EndByInterrupt(bool) {}

func numberOf(s os.Signal) (number int, kind signalKind) {
	n, _ := s.(syscall.Signal)
	return int(n), terminates
}

// terminal is for systems with process groups.
type terminal struct{}

func openTerminal() *terminal            { return nil }
func (*terminal) give(int)               {}
func (*terminal) take()                  {}
func (*terminal) pause()                 {}
func (*terminal) sendsInterrupts() bool  { return false }
func (*terminal) isPausedInVain() bool   { return false }
func (*terminal) resume() (resumed bool) { return false }

// Shell is what runs the command line of Check.
const Shell = "cmd /C"

// Check runs a command line with cmd /C, to learn whether this machine can lead. It returns nil if
// the status is 0, and otherwise an error with the status and the end of what the command wrote.
// It is killed when ctx ends; what it started is not.
func Check(ctx context.Context, line string, env []string) error {
	cmd := exec.CommandContext(ctx, "cmd", "/C", line)
	cmd.Env = env
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("--health: killed: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("--health: %w: %s", err, strings.Join(strings.Fields(string(output)), " "))
	}
	return nil
}
