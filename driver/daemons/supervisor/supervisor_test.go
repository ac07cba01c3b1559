package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// manualClock is a Clock that the test moves.
type manualClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*timer]bool
	made   chan time.Duration // of each timer
}

type timer struct {
	at time.Time
	c  chan time.Time
}

func newClock() *manualClock {
	return &manualClock{now: time.Unix(1e9, 0), timers: map[*timer]bool{}, made: make(chan time.Duration, 1000)}
}

func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) NewTimer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c.now.Add(d), make(chan time.Time, 1)}
	c.timers[t] = true
	c.made <- d
	return t.c, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, t)
	}
}

func (c *manualClock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for t := range c.timers {
		if !t.at.After(c.now) {
			delete(c.timers, t)
			t.c <- c.now
		}
	}
}

// waitFor waits until a timer with a duration is created.
func (c *manualClock) waitFor(t *testing.T, d time.Duration) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case made := <-c.made:
			if made == d {
				return
			}
		case <-late:
			t.Fatalf("no timer of %v was made", d)
		}
	}
}

const (
	patience = time.Minute // of a test; nothing is measured
	starting = 30 * time.Second
	stopping = 10 * time.Second
)

// lines is a channel of log lines.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// bench runs a Supervisor on fakes in a folder.
type bench struct {
	*Supervisor
	t       *testing.T
	dir     string
	clock   *manualClock
	reports chan []Status
	log     lines
	cancel  context.CancelFunc
	ended   chan error
}

// daemon is a fake; "DIR" in its arguments stands for the folder.
func newBench(t *testing.T, daemons ...Daemon) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), clock: newClock(), reports: make(chan []Status, 1000), log: make(lines, 1000), ended: make(chan error, 1)}
	program, err := os.Executable()
	require.NoError(t, err)
	for i := range daemons {
		d := &daemons[i]
		if d.Path == "" {
			d.Path = program
		}
		d.StartTimeout = starting
		d.Env = append(d.Env, fakeVariable, "GORACE=atexit_sleep_ms=0", "GOCOVERDIR="+t.TempDir())
		for _, text := range []*string{&d.PIDFile, &d.Ready, &d.LogFile} {
			*text = strings.ReplaceAll(*text, "DIR", b.dir)
		}
		for j := range d.Args {
			d.Args[j] = strings.ReplaceAll(d.Args[j], "DIR", b.dir)
		}
	}
	b.Supervisor = New(Config{Daemons: daemons, StatusFile: filepath.Join(b.dir, "status"), Clock: b.clock, StopTimeout: stopping,
		Log: slog.New(slog.NewTextHandler(b.log, nil)), Report: func(s []Status) { b.reports <- s }})
	return b
}

func (b *bench) run() {
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel = cancel
	go func() { b.ended <- b.Run(ctx) }()
	b.t.Cleanup(func() {
		if b.cancel != nil {
			_ = b.stop()
		}
	})
}

func (b *bench) stop() error {
	b.cancel()
	b.cancel = nil
	select {
	case err := <-b.ended:
		return err
	case <-time.After(patience):
		b.t.Fatal("Run does not end")
	}
	return nil
}

// until waits for a report that satisfies a condition, and returns it.
func (b *bench) until(is func([]Status) bool) []Status {
	b.t.Helper()
	late := time.After(patience)
	for {
		select {
		case s := <-b.reports:
			if is(s) {
				return s
			}
		case <-late:
			b.t.Fatalf("never so: now %+v", b.Status())
		}
	}
}

func (b *bench) untilReady() []Status {
	b.t.Helper()
	return b.until(func(all []Status) bool {
		for _, s := range all {
			if !s.Ready {
				return false
			}
		}
		return true
	})
}

// untilLogged waits for a log line with a text.
func (b *bench) untilLogged(text string) {
	b.t.Helper()
	late := time.After(patience)
	for {
		select {
		case line := <-b.log:
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			b.t.Fatalf("%q was not logged", text)
		}
	}
}

func (b *bench) status() string {
	data, err := os.ReadFile(b.StatusFile)
	require.NoError(b.t, err)
	return string(data)
}

func (b *bench) lines(name string) []string {
	data, _ := os.ReadFile(filepath.Join(b.dir, name))
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func alive(pid int) bool {
	if unix.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// setSubreaper sets whether this process takes orphans, for one test.
func setSubreaper(t *testing.T, on bool) {
	t.Helper()
	if on {
		require.NoError(t, BecomeSubreaper())
	}
	t.Cleanup(func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) })
}

func TestDaemonsStartInOrderAndEndInReverse(t *testing.T) {
	b := newBench(t,
		Daemon{Name: "one", Args: []string{"-name=one", "-trace=DIR/trace", "-forks", "-pid=DIR/one/pid"}, Forks: true, PIDFile: "DIR/one/pid"},
		Daemon{Name: "two", Args: []string{"-name=two", "-trace=DIR/trace", "-socket=DIR/two"}, Ready: "DIR/two", Required: true},
		Daemon{Name: "three", Args: []string{"-name=three", "-trace=DIR/trace", "-pid=DIR/three"}, Ready: "DIR/three", After: []string{"two"}})
	require.EqualError(t, b.Ready(), "one is starting; two is starting; three is starting")
	b.run()
	all := b.untilReady()
	require.NoError(t, b.Ready())
	require.Equal(t, "Ready\n", b.status())
	for _, s := range all {
		require.True(t, s.Running && alive(s.PID), "%+v", s)
		require.Zero(t, s.Restarts)
	}
	require.NoError(t, b.stop())
	require.Equal(t, "NotReady\n", b.status())
	require.EqualError(t, b.Ready(), "the driver's daemons are being stopped")
	require.Equal(t, []string{"start one []", "start two []", "start three []", "end three", "end two", "end one"}, b.lines("trace"))
	for _, s := range all {
		require.False(t, alive(s.PID), "%+v", s)
	}
}

func TestForkingDaemonIsFoundByItsPIDFile(t *testing.T) {
	for _, c := range []struct {
		subreaper bool
		exit      string
	}{
		{true, "signal: killed"},
		{false, "its exit code is not known, as this process is not its parent"},
	} {
		t.Run(strconv.FormatBool(c.subreaper), func(t *testing.T) {
			setSubreaper(t, c.subreaper)
			b := newBench(t, Daemon{Name: "d", Args: []string{"-forks", "-pid=DIR/pid", "-say=hello", "-trace=DIR/trace"}, RestartArgs: []string{"again"},
				Forks: true, PIDFile: "DIR/pid", Required: true})
			b.run()
			first := b.untilReady()[0].PID
			b.untilLogged("line=hello")
			require.NoError(t, unix.Kill(first, syscall.SIGKILL))
			b.until(func(all []Status) bool { return all[0].LastExit == c.exit })
			require.ErrorContains(t, b.Ready(), "d is not ready: "+c.exit+", started again 0 times; it said: hello")
			require.Equal(t, "NotReady\n", b.status())
			b.clock.waitFor(t, firstPause)
			b.clock.move(firstPause)
			second := b.untilReady()[0]
			require.NotEqual(t, first, second.PID)
			require.Equal(t, 1, second.Restarts)
			require.Equal(t, []string{"start fake []", "start fake [again]"}, b.lines("trace"))
			require.NoError(t, b.stop())
			require.False(t, alive(second.PID))
		})
	}
}

func TestFailureDoesNotAffectOtherDaemons(t *testing.T) {
	b := newBench(t,
		Daemon{Name: "bad", Args: []string{"-say=no switch", "-exit=3"}, Ready: "DIR/bad", Required: true},
		Daemon{Name: "needy", Args: []string{"-trace=DIR/trace"}, Required: true, After: []string{"bad"}},
		Daemon{Name: "wanted", Args: []string{"-exit=1"}, Ready: "DIR/wanted"},
		Daemon{Name: "absent", Path: "/nowhere/absent"},
		Daemon{Name: "good", Args: []string{"-socket=DIR/good"}, Ready: "DIR/good"})
	b.run()
	all := b.until(func(all []Status) bool { return all[4].Ready })
	require.Equal(t, "exit status 3", all[0].LastExit)
	require.Equal(t, []string{"no switch"}, all[0].LastLines)
	require.Equal(t, "not started, as it needs bad", all[1].LastExit)
	require.Equal(t, "exit status 1", all[2].LastExit)
	require.Contains(t, all[3].LastExit, "no such file or directory")
	err := b.Ready()
	require.EqualError(t, err, "bad is not ready: exit status 3, started again 0 times; it said: no switch; "+
		"needy is not ready: not started, as it needs bad, started again 0 times")
	require.NoError(t, b.stop())
	require.NoFileExists(t, filepath.Join(b.dir, "trace"))
}

func TestDaemonWaitsForItsDependency(t *testing.T) {
	b := newBench(t,
		Daemon{Name: "first", Args: []string{"-exit-unless=DIR/cured", "-socket=DIR/first"}, Ready: "DIR/first", Required: true},
		Daemon{Name: "second", Args: []string{"-socket=DIR/second"}, Ready: "DIR/second", Required: true, After: []string{"first"}})
	b.run()
	b.until(func(all []Status) bool { return all[0].LastExit == "exit status 3" && all[1].LastExit != "" })
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "cured"), nil, 0o644))
	b.clock.waitFor(t, firstPause)
	b.clock.move(firstPause)
	b.untilReady()
	require.NoError(t, b.Ready())
}

func TestBackOffDoublesUntilADaemonIsSteady(t *testing.T) {
	b := newBench(t, Daemon{Name: "d", Args: []string{"-exit-unless=DIR/cured", "-socket=DIR/d"}, Ready: "DIR/d", Required: true})
	b.run()
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		b.clock.waitFor(t, pause*time.Second)
		b.clock.move(pause * time.Second)
	}
	b.clock.waitFor(t, lastPause)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "cured"), nil, 0o644))
	b.clock.move(lastPause)
	pid := b.untilReady()[0].PID
	require.NoError(t, unix.Kill(pid, syscall.SIGKILL))
	b.clock.waitFor(t, lastPause) // it was not ready for long
	b.clock.move(lastPause)
	pid = b.untilReady()[0].PID
	b.clock.move(steady + 1)
	require.NoError(t, unix.Kill(pid, syscall.SIGKILL))
	b.clock.waitFor(t, firstPause)
}

func TestDaemonThatIsNeverReadyIsRestarted(t *testing.T) {
	for name, d := range map[string]Daemon{
		"no socket":        {Args: []string{"-say=hm"}, Ready: "DIR/nothing"},
		"does not fork":    {Args: []string{"-say=hm", "-pid=DIR/pid"}, Forks: true, PIDFile: "DIR/pid"},
		"no PID file":      {Args: []string{"-exit=0", "-say=hm"}, Forks: true, PIDFile: "DIR/none/pid"},
		"another's in it":  {Args: []string{"-exit=0", "-say=hm"}, Forks: true, PIDFile: "DIR/pid"},
		"forks, no socket": {Args: []string{"-forks", "-say=hm", "-pid=DIR/pid"}, Forks: true, PIDFile: "DIR/pid", Ready: "DIR/nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			setSubreaper(t, true)
			d.Name, d.Required = "d", true
			b := newBench(t, d)
			b.run()
			b.until(func(all []Status) bool { return all[0].Running })
			pid := b.Status()[0].PID
			b.untilLogged("line=hm")
			if name == "another's in it" {
				require.NoError(t, os.WriteFile(filepath.Join(b.dir, "pid"), []byte("1\n"), 0o644))
			}
			b.clock.waitFor(t, starting)
			b.clock.move(starting)
			all := b.until(func(all []Status) bool { return !all[0].Running })
			require.False(t, alive(pid))
			b.until(func(all []Status) bool { return all[0].LastExit != "" })
			require.Contains(t, b.Ready().Error(), "not ready 30s after it was started")
			require.Equal(t, []string{"hm"}, all[0].LastLines)
			b.clock.waitFor(t, firstPause)
			b.clock.move(firstPause)
			b.until(func(all []Status) bool { return all[0].Running && all[0].Restarts == 1 })
		})
	}
}

func TestHangingForkedDaemonIsEnded(t *testing.T) {
	for _, early := range []bool{false, true} {
		setSubreaper(t, true)
		b := newBench(t, Daemon{Name: "d", Args: []string{"-stuck", "-forks", "-pid=DIR/pid"}, Forks: true, PIDFile: "DIR/pid"})
		b.run()
		b.untilLogged("line=\"stuck")
		var pid int
		_, err := fmt.Sscanf(b.Status()[0].LastLines[0], "stuck %d", &pid)
		require.NoError(t, err)
		require.True(t, alive(pid))
		if early {
			require.NoError(t, b.stop())
		} else {
			b.clock.waitFor(t, starting)
			b.clock.move(starting)
			b.until(func(all []Status) bool { return all[0].LastExit != "" })
		}
		require.False(t, alive(pid))
	}
}

func TestDaemonThatIgnoresSIGTERMIsKilledWithItsChildren(t *testing.T) {
	setSubreaper(t, true)
	b := newBench(t,
		Daemon{Name: "forks", Args: []string{"-deaf", "-forks", "-pid=DIR/pid", "-helper"}, Forks: true, PIDFile: "DIR/pid"},
		Daemon{Name: "stays", Args: []string{"-deaf", "-socket=DIR/stays", "-helper"}, Ready: "DIR/stays"})
	b.run()
	b.untilReady()
	var pids []int
	b.untilLogged("helper")
	b.untilLogged("helper")
	for _, s := range b.Status() {
		pids = append(pids, s.PID)
		var helper int
		_, err := fmt.Sscanf(s.LastLines[0], "helper %d", &helper)
		require.NoError(t, err)
		pids = append(pids, helper)
	}
	b.cancel()
	b.clock.waitFor(t, stopping)
	b.clock.move(stopping)
	for range 3 { // until the first was killed, until its helper was, and for the other to end
		b.clock.waitFor(t, stopping)
	}
	b.clock.move(stopping)
	require.NoError(t, b.stop())
	for _, pid := range pids {
		require.False(t, alive(pid), "process %d", pid)
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		require.ErrorIs(t, err, unix.ECHILD, "process %d is reaped", pid)
	}
}

func TestLeftoversOfAnEarlierSupervisorAreEnded(t *testing.T) {
	setSubreaper(t, true)
	d := Daemon{Name: "d", Args: []string{"-forks", "-pid=DIR/pid"}, Forks: true, PIDFile: "DIR/pid"}
	b := newBench(t, d)
	program, err := os.Executable()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	left, err := os.StartProcess(program, []string{"left", "-pid=" + b.dir + "/pid"},
		&os.ProcAttr{Env: []string{fakeVariable, "FORKED=1"}, Files: []*os.File{nil, nil, nil, w}})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = r.Read(make([]byte, 1))
	require.NoError(t, err)
	b.run()
	now := b.untilReady()[0].PID
	require.NotEqual(t, left.Pid, now)
	require.False(t, alive(left.Pid))
	require.True(t, alive(now))
}

func TestLogFileGivesTheReason(t *testing.T) {
	b := newBench(t, Daemon{Name: "d", Args: []string{"-log=DIR/log", "-exit=1"}, LogFile: "DIR/log", Required: true})
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "log"), []byte("of before\n"), 0o644))
	b.run()
	b.until(func(all []Status) bool { return all[0].LastExit != "" && !all[0].Running })
	require.EqualError(t, b.Ready(), "d is not ready: exit status 1, started again 0 times; it said: logged by fake")
}

func TestFilesAndDirectoriesAreCreatedBeforeTheDaemon(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "conf")
	b := newBench(t, Daemon{Name: "d", Args: []string{"-exit-unless=" + path, "-socket=" + dir + "/run/socket"}, Ready: dir + "/run/socket",
		Dirs: []string{filepath.Join(dir, "run")}, Files: []File{{path, []byte("A=1\n")}}})
	b.run()
	b.untilReady()
}

func TestTheReasonIsBounded(t *testing.T) {
	var daemons []Daemon
	for i := range 5 {
		daemons = append(daemons, Daemon{Name: fmt.Sprint("d", i), Args: []string{"-exit=1", "-say=" + strings.Repeat("långt ", 500)}, Ready: "DIR/nothing", Required: true})
	}
	b := newBench(t, daemons...)
	b.run()
	b.until(func(all []Status) bool { return all[4].LastExit != "" })
	text := b.Ready().Error()
	require.LessOrEqual(t, len(text), 1000)
	for i := range 5 {
		require.Contains(t, text, fmt.Sprintf("d%d is not ready: exit status 1", i))
	}
}

func TestSupervisorWithoutDaemonsIsReady(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.Ready())
	b.run()
	b.until(func([]Status) bool { return true })
	require.Equal(t, "Ready\n", b.status())
	require.NoError(t, b.stop())
}

func TestTheTailIsBounded(t *testing.T) {
	var said []string
	tail := &tail{handle: func(line string) { said = append(said, line) }}
	tail.write([]byte(strings.Repeat("x", 3*maxLine)))
	tail.write([]byte("y\n\n\x1b[31mred\n"))
	for i := range 2 * maxLines {
		tail.write(fmt.Appendln(nil, i))
	}
	tail.write([]byte("no end"))
	tail.flushLine()
	lines := tail.lastLines()
	require.Len(t, lines, maxLines)
	require.Equal(t, "no end", lines[maxLines-1])
	require.Len(t, said[0], maxLine)
	require.Equal(t, "[31mred", said[1])
}
