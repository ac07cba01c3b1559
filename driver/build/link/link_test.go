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

// TestBadHalvesAreRefused has what goes wrong before the linker runs; what it makes is tested
// with real kernels.
func TestBadHalvesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                  "EOF",
		`{"release":"6.2"}`: "is of kernel 6.2, not of 6.1",
		`{"kernel":"6.1"}`:  `unknown field "kernel"`,
		`{"release":"6.1","modules":[{"name":"../nvidia","objects":[{"path":"a.o"}]}]}`:                                       "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"a/nvidia","objects":[{"path":"a.o"}]}]}`:                                        "is no module",
		`{"release":"6.1","modules":[{"name":"nvidia"}]}`:                                                                     "is no module",
		`{"release":"6.1","modules":[{"name":"nvidia","objects":[{}]}]}`:                                                      "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"nvidia","objects":[{"path":"/etc/passwd"}]}]}`:                                  "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"nvidia","objects":[{"common":"../x"}]}]}`:                                       "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"nvidia","rest":["../x"],"objects":[{"path":"a.o"}]}]}`:                          "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"nvidia","script":"/x.lds","objects":[{"path":"a.o"}]}]}`:                        "is no path below a folder",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"no-such-linker","objects":[{"path":"a.o"}]}]}`:                "there is no linker",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"common":"a.o_binary","sha256":"0"}]}]}`:      "a.o_binary is of another driver than",
		`{"release":"6.1","modules":[{"name":"nvidia","linker":"ld","objects":[{"path":"a.o"}],"flags":["--no-such-flag"]}]}`: "no-such-flag",
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
