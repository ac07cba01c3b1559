package link

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
)

// Whatever a list contains, only files below its folders are read and run.
func FuzzHalves(f *testing.F) {
	f.Add([]byte(`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"},{"common":"b.o_binary","sha256":"0"}],"rest":["c.o"]}]}`))
	f.Add([]byte(`{"modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a/b","common":"/../../c"}]}]}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), text, 0o644))
		all, err := Read(dir)
		if err != nil {
			return
		}
		for _, h := range all.Modules {
			if h.checkPaths() != nil {
				continue
			}
			for _, o := range h.Objects {
				require.True(t, filepath.IsLocal(o.Path) != filepath.IsLocal(o.Common))
				require.True(t, o.Path == "" || o.Common == "")
			}
			for _, p := range h.Rest {
				require.True(t, filepath.IsLocal(p))
			}
			require.True(t, h.Script == "" || filepath.IsLocal(h.Script))
			require.True(t, h.Signature == "" || filepath.IsLocal(h.Signature))
			require.Equal(t, h.Name, filepath.Base(h.Name))
		}
	})
}

// TestBadHalvesAreRefused covers errors before the linker runs. Its output is tested with real
// kernels.
func TestBadHalvesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                  "EOF",
		`{"release":"6.2"}`: "is of kernel 6.2, not of 6.1",
		`{"kernel":"6.1"}`:  `unknown field "kernel"`,
		`{"release":"6.1","modules":[{"name":"../nvidia","linker":"ld","objects":[{"path":"a.o"}]}]}`:                          "is not a local path",
		`{"release":"6.1","modules":[{"name":"a/nvidia","linker":"ld","objects":[{"path":"a.o"}]}]}`:                           "is not a module",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld"}]}`:                                                        "is not a module",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{}]}]}`:                                         "is not a local path",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"/etc/passwd"}]}]}`:                     "is not a local path",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"common":"../x"}]}]}`:                          "is not a local path",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a/b","common":"/../../x"}]}]}`:         "an object has a path or is one of the driver's",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","rest":["../x"],"objects":[{"path":"a.o"}]}]}`:             "is not a local path",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","script":"/x.lds","objects":[{"path":"a.o"}]}]}`:           "is not a local path",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"no-such-ld.bfd","objects":[{"path":"a.o"}]}]}`:                 "there is no linker",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"common":"a.o_binary","sha256":"0"}]}]}`:       "a.o_binary is of another driver than",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"}],"flags":["--no-such-flag"]}]}`:  "no-such-flag",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"}],"flags":["-plugin=evil.so"]}]}`: `"-plugin=evil.so" is not a flag`,
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"}],"flags":["-T","x"]}]}`:          `"-T" is not a flag`,
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"}],"flags":["@args"]}]}`:           `"@args" is not a flag`,
	} {
		t.Run(want, func(t *testing.T) {
			r := Request{Halves: t.TempDir(), Common: t.TempDir(), Release: "6.1", Version: "1", Work: t.TempDir()}
			require.NoError(t, os.WriteFile(filepath.Join(r.Halves, FileName), []byte(text), 0o644))
			require.NoError(t, os.WriteFile(filepath.Join(r.Halves, "a.o"), nil, 0o644))
			require.NoError(t, os.WriteFile(filepath.Join(r.Common, "a.o_binary"), nil, 0o644))
			_, err := Link(t.Context(), r)
			require.ErrorContains(t, err, want)
			e, ok := err.(*kernel.Error) //nolint:errorlint // it is no wrapped one
			require.True(t, ok)
			require.Equal(t, output.ReasonBuildFailed, e.Reason)
			left, err := os.ReadDir(r.Work)
			require.NoError(t, err)
			require.Empty(t, left)

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = Link(ctx, r)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}
