package daemon

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

func in(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEachNameHasOneOfItsTwoFiles(t *testing.T) {
	dir := t.TempDir()
	w := NewProofWriter(dir, "b")
	for _, f := range allProofs {
		require.NoError(t, w.Write(f.name, check.NewPass(readiness.Proof{Summary: "proven"})))
		require.Equal(t, []string{f.ready}, in(t, dir))
		require.NoError(t, w.Write(f.name, check.Fail("Some", "wrong", "do")))
		require.Equal(t, []string{f.notReady}, in(t, dir))
		require.NoError(t, w.Remove(f.name))
		require.Empty(t, in(t, dir))
	}
	for _, l := range append(readiness.Layers(), readiness.Optional()...) {
		require.NoError(t, w.Write(l, check.Fail("Some", "wrong", "do")))
	}
	require.NoError(t, os.WriteFile(dir+"/theirs", nil, 0o644))
	require.ErrorContains(t, w.Write("theirs", check.Fail("Some", "wrong", "do")), "theirs has no files for a proof")
	require.NoError(t, w.RemoveAll())
	require.Equal(t, []string{"theirs"}, in(t, dir))
}

var writes = regexp.MustCompile(`readiness\.(WriteReady|WriteNotReady|Clear)\b`)

func TestNothingElseWritesProofs(t *testing.T) {
	found := 0
	validator := os.DirFS("..")
	require.NoError(t, fs.WalkDir(validator, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(validator, path)
		if writes.Match(text) {
			found++
			require.Equal(t, "daemon/proof.go", path)
		}
		return err
	}))
	require.Equal(t, 1, found)
}
