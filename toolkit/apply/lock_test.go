package apply_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuready/gpuready/toolkit/apply"
)

const locks = "/run/nvidia/gpuready/toolkit"

func wait(error) {}

func TestErrLockedNamesTheHolder(t *testing.T) {
	at := scratch(t)
	held, err := apply.Lock(t.Context(), open(t, at), locks, nil)
	require.NoError(t, err, "before any directory of ours exists")
	other := open(t, at)
	_, err = apply.Lock(t.Context(), other, locks, nil)
	require.ErrorIs(t, err, apply.ErrLocked)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.ErrorContains(t, err, filepath.Base(os.Args[0]))
	require.ErrorContains(t, err, locks+"/toolkit.lock")
	require.NoError(t, held.Unlock())
	held, err = apply.Lock(t.Context(), other, locks, nil)
	require.NoError(t, err)
	require.NoError(t, held.Unlock())
	require.FileExists(t, at+locks+"/toolkit.lock")
}

func TestSecondInstanceWaits(t *testing.T) {
	defer goleak.VerifyNone(t)
	at := scratch(t)
	root := open(t, at)
	held, err := apply.Lock(t.Context(), root, locks, wait)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := apply.Lock(ctx, root, locks, wait)
		ended <- err
	}()
	cancel()
	err = <-ended
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, apply.ErrLocked)

	got := make(chan *apply.Held)
	go func() {
		second, err := apply.Lock(t.Context(), root, locks, wait)
		if err != nil {
			t.Error(err)
		}
		got <- second
	}()
	require.NoError(t, held.Unlock())
	require.NoError(t, (<-got).Unlock())
}

// A child that outlives its parent does not keep the lock.
func TestChildrenDoNotInheritTheLock(t *testing.T) {
	root := open(t, scratch(t))
	held, err := apply.Lock(t.Context(), root, locks, nil)
	require.NoError(t, err)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVar+"=1")
	require.NoError(t, child.Start())
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	require.NoError(t, held.Unlock())
	held, err = apply.Lock(t.Context(), root, locks, nil)
	require.NoError(t, err)
	require.NoError(t, held.Unlock())
}

func TestLockOnAnOddFileIsRefusedByName(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"link":      func(p string) error { return os.Symlink("/etc/passwd", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		at := scratch(t)
		require.NoError(t, os.MkdirAll(at+locks, 0o755))
		require.NoError(t, make(at+locks+"/toolkit.lock"))
		_, err := apply.Lock(t.Context(), open(t, at), locks, wait)
		require.ErrorContains(t, err, locks+"/toolkit.lock", name)
	}
	at := scratch(t)
	require.NoError(t, os.MkdirAll(at+filepath.Dir(locks), 0o755))
	require.NoError(t, os.WriteFile(at+locks, nil, 0o644))
	_, err := apply.Lock(t.Context(), open(t, at), locks, wait)
	require.Error(t, err)
	require.NotErrorIs(t, err, fs.ErrNotExist)
}

func TestWaiterForARemovedLockLocksTheNewFile(t *testing.T) {
	at := t.TempDir()
	root := open(t, at)
	held, err := apply.Lock(t.Context(), root, locks, nil)
	require.NoError(t, err)
	waited := make(chan *apply.Held, 1)
	go func() {
		second, err := apply.Lock(t.Context(), open(t, at), locks, wait)
		if err == nil {
			waited <- second
		}
		close(waited)
	}()
	require.NoError(t, held.Remove())
	require.NoError(t, held.Unlock())
	second := <-waited
	require.NotNil(t, second)
	_, err = apply.Lock(t.Context(), root, locks, nil)
	require.ErrorIs(t, err, apply.ErrLocked)
	require.NoError(t, second.Unlock())
}
