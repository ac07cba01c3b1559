package supervisor

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gpuready/gpuready/test/lab/leak"
)

// The test binary is also the daemons: with fakeVariable in its environment it runs as one.
const fakeVariable = "GPUREADY_FAKE_DAEMON=1"

func TestMain(m *testing.M) {
	if os.Getenv("GPUREADY_FAKE_DAEMON") != "" {
		os.Exit(fake(os.Args[1:]))
	}
	leak.Main(m)
}

// fake runs a daemon that follows its arguments, until SIGTERM.
func fake(args []string) int {
	f := flag.NewFlagSet("fake", flag.ContinueOnError)
	say := f.String("say", "", "print it")
	logTo := f.String("log", "", "write a line to a file")
	syslogTo := f.String("syslog", "", "log a line by a socket")
	exit := f.Int("exit", -1, "exit with it at once")
	exitFile := f.String("exit-unless", "", "exit with 3 unless the file is there")
	socket := f.String("socket", "", "listen on it")
	pidFile := f.String("pid", "", "write the PID there")
	forks := f.Bool("forks", false, "leave a daemon and exit with 0")
	deaf := f.Bool("deaf", false, "ignore SIGTERM")
	stuck := f.Bool("stuck", false, "do nothing more when it was forked")
	helper := f.Bool("helper", false, "leave a deaf process in the group")
	trace := f.String("trace", "", "append a line on start and end")
	name := f.String("name", "fake", "in the trace")
	if f.Parse(args) != nil {
		return 2
	}
	if *say != "" && os.Getenv("FORKED") == "" {
		fmt.Println(*say)
	}
	if *logTo != "" {
		appendLine(*logTo, "logged by "+*name)
	}
	if *syslogTo != "" {
		c, err := net.Dial("unixgram", *syslogTo)
		if err != nil {
			return 5
		}
		_, _ = fmt.Fprintf(c, "<27>%s %s[%d]: logged by %s", time.Now().Format(time.Stamp), *name, os.Getpid(), *name)
	}
	if *exitFile != "" {
		if _, err := os.Stat(*exitFile); err != nil {
			return 3
		}
	}
	if *exit >= 0 {
		return *exit
	}
	if *forks {
		return fork(args)
	}
	terms := make(chan os.Signal, 1)
	if *deaf {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(terms, syscall.SIGTERM)
	}
	if *helper {
		cmd := exec.Command(os.Args[0], "-deaf")
		if cmd.Stdout = os.Stdout; cmd.Start() != nil {
			return 4
		}
		fmt.Println("helper", cmd.Process.Pid)
	}
	if *trace != "" {
		appendLine(*trace, "start "+*name+" "+fmt.Sprint(f.Args()))
	}
	if *stuck && os.Getenv("FORKED") != "" {
		fmt.Println("stuck", os.Getpid())
		waitFor(terms)
		return 0
	}
	if *pidFile != "" {
		_ = os.MkdirAll(filepath.Dir(*pidFile), 0o755)
		_ = os.WriteFile(*pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
	}
	if *socket != "" {
		l, err := net.Listen("unix", *socket)
		if err != nil {
			return 5
		}
		defer l.Close()
	}
	if ready := os.NewFile(3, "ready"); os.Getenv("FORKED") != "" {
		_, _ = ready.WriteString("1")
		_ = ready.Close()
	}
	waitFor(terms)
	if *trace != "" {
		appendLine(*trace, "end "+*name)
	}
	return 0
}

// waitFor waits for a signal. A process that ignores all of them must not end as a deadlock.
func waitFor(signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
			return
		case <-time.After(time.Hour):
		}
	}
}

// fork starts the actual daemon in a new session, and exits when that is ready.
func fork(args []string) int {
	r, w, err := os.Pipe()
	if err != nil {
		return 6
	}
	cmd := exec.Command(os.Args[0], append([]string{"-forks=false"}, remove(args, "-forks")...)...)
	cmd.Env, cmd.Stdout = append(os.Environ(), "FORKED=1"), os.Stdout
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Start() != nil {
		return 6
	}
	_ = w.Close()
	if n, _ := r.Read(make([]byte, 1)); n == 0 {
		return 7
	}
	return 0
}

func remove(args []string, what string) []string {
	var rest []string
	for _, a := range args {
		if a != what {
			rest = append(rest, a)
		}
	}
	return rest
}

func appendLine(path, line string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
