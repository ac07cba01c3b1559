package mount

import (
	"context"
	"os"
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
	for name, replace := range map[string]func(source string) error{
		"removed": os.RemoveAll,
		"renamed": func(source string) error { return os.Rename(source, source+".old") },
		"detached": func(source string) error {
			return unix.Unmount(source+"-in-container", unix.MNT_DETACH)
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := "/run/" + name
			at := source + "-in-container"
			require.NoError(t, os.Mkdir(source, 0o755))
			require.NoError(t, os.Mkdir(at, 0o755))
			require.NoError(t, unix.Mount(source, at, "", unix.MS_BIND, ""))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- waitReplaced(ctx, 10*time.Millisecond, []string{at, "/run", "/nowhere"}) }()
			require.NoError(t, os.WriteFile(source+"/file", nil, 0o600), "a change in it is none of it")
			time.Sleep(100 * time.Millisecond)
			require.Empty(t, ended)
			require.NoError(t, replace(source))
			require.EqualError(t, <-ended, at+": "+ErrReplaced.Error())
		})
	}
}
