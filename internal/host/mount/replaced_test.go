package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/node"
)

func TestAFolderThatTheHostReplacesIsNoticed(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	const never, soon = time.Hour, 10 * time.Millisecond
	const delay = 200 * time.Millisecond // the folder is removed long before
	for name, c := range map[string]struct {
		replace  func(source string) error
		interval time.Duration
	}{
		"removed":       {os.RemoveAll, never},
		"renamed":       {func(source string) error { return os.Rename(source, source+".old") }, never},
		"removed-empty": {func(source string) error { return errors.Join(os.Remove(source+"/file"), os.Remove(source)) }, soon},
		"above-renamed": {func(source string) error { return os.Rename(filepath.Dir(source), filepath.Dir(source)+".old") }, soon},
		"detached": {func(source string) error {
			return unix.Unmount("/run/"+filepath.Base(source)+"-in-container", unix.MNT_DETACH)
		}, soon},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := "/run/" + name + "-above/" + name
			at := "/run/" + name + "-in-container"
			require.NoError(t, os.MkdirAll(source, 0o755))
			require.NoError(t, os.Mkdir(at, 0o755))
			require.NoError(t, unix.Mount(source, at, "", unix.MS_BIND, ""))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- RecordFolders(at, "/proc", "/nowhere").wait(ctx, delay, c.interval) }()
			require.NoError(t, os.WriteFile(source+"/file", nil, 0o600), "a change in it is none of it")
			time.Sleep(5 * delay) // the comparisons for the beginning and for that file are over
			require.Empty(t, ended)
			require.NoError(t, c.replace(source))
			require.EqualError(t, <-ended, at+": "+ErrReplaced.Error())
		})
	}
}

func TestWithoutAMountThereIsNothingToWaitFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, WaitReplaced(ctx, t.TempDir(), "/nowhere"), context.DeadlineExceeded)
}
