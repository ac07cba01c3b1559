package inotify

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// logged is a log that may be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

const (
	nowPolling  = "changes on this node are looked for every few seconds"
	nowByEvents = "the kernel tells of changes on this node again"
)

// pollQuickly shortens the poll interval for a test, and returns the log.
func pollQuickly(t *testing.T) *logged {
	every := pollInterval
	pollInterval = 10 * time.Millisecond
	log := &logged{}
	SetLogger(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { pollInterval = every; SetLogger(nil) })
	return log
}

// await waits for an event of a kind.
func await(t *testing.T, w *Watcher, what EventKind) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		e, err := w.Next(ctx)
		require.NoError(t, err)
		if e.Kind == what {
			return e
		}
	}
}

// noDescriptors uses up the file descriptors of the process, and returns a function that
// frees them.
func noDescriptors(t *testing.T) (giveBack func()) {
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	low := was
	low.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	once := sync.OnceFunc(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
	t.Cleanup(once)
	return once
}

func TestWatcherPollsUntilThereAreDescriptors(t *testing.T) {
	log := pollQuickly(t)
	dir := t.TempDir()
	giveBack := noDescriptors(t)
	w, err := New()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(dir))
	require.True(t, w.Has(dir), "it is watched as well as it can be")
	require.ErrorIs(t, w.Add(filepath.Join(dir, "none")), fs.ErrNotExist)
	for range 3 {
		await(t, w, Missed)
	}
	require.ErrorIs(t, PollingReason(), unix.EMFILE)
	require.Equal(t, 1, log.count(nowPolling))
	giveBack()
	require.Eventually(t, func() bool { return PollingReason() == nil }, time.Minute, time.Millisecond)
	require.Equal(t, 1, log.count(nowByEvents))
	require.Equal(t, Event{Kind: Changed, Dir: dir, Name: "file"}, awaitChange(t, w, dir))
}

// awaitChange writes a file in a directory until that is reported: a Missed still in the
// queue stands for earlier changes.
func awaitChange(t *testing.T, w *Watcher, dir string) Event {
	t.Helper()
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick:
				_ = os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	return await(t, w, Changed)
}

func TestDirectoryRemovedWhilePollingIsGone(t *testing.T) {
	pollQuickly(t)
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	giveBack := noDescriptors(t)
	w, err := New()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(dir))
	require.NoError(t, unix.Rmdir(dir))
	giveBack()
	require.Eventually(t, func() bool { return !w.Has(dir) }, time.Minute, time.Millisecond)
	await(t, w, Missed)
}

func TestClosingAPollingWatcherLeavesNothing(t *testing.T) {
	log := pollQuickly(t)
	noDescriptors(t)
	w, err := New()
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, PollingReason())
	require.Equal(t, 1, log.count(nowByEvents))
}

// TestLimitsOfAUserNamespace runs in a user namespace, which may set the kernel limits for
// itself.
func TestLimitsOfAUserNamespace(t *testing.T) {
	const inside = "INOTIFY_INSIDE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Skipf("there are no user namespaces here: %v", err)
		}
		require.NoError(t, err, "%s", out)
		return
	}
	limit := func(name, value string) {
		t.Helper()
		require.NoError(t, os.WriteFile("/proc/sys/user/"+name, []byte(value), 0o644))
	}
	log := pollQuickly(t)
	one, two := t.TempDir(), t.TempDir()

	limit("max_inotify_instances", "0")
	w, err := New()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	require.NoError(t, w.Add(one))
	await(t, w, Missed)
	limit("max_inotify_instances", "10")
	require.Eventually(t, func() bool { return PollingReason() == nil }, time.Minute, time.Millisecond)

	limit("max_inotify_watches", "1")
	require.NoError(t, w.Add(two))
	require.ErrorIs(t, PollingReason(), unix.ENOSPC)
	await(t, w, Missed)
	limit("max_inotify_watches", "10")
	require.Eventually(t, func() bool { return PollingReason() == nil }, time.Minute, time.Millisecond)
	require.Equal(t, two, awaitChange(t, w, two).Dir)
	require.Equal(t, 2, log.count(nowPolling))
	require.Equal(t, 2, log.count(nowByEvents))
}
