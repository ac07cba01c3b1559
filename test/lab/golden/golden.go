// Package golden compares what tests make with files that are checked in, such as expected
// output and generated files. go test -update writes the files anew.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write golden and generated files anew")

// Require fails the test unless the file at a path has the given content. With -update it
// writes the content first.
func Require[T string | []byte](t testing.TB, path string, content T) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err, "run go test -update")
	require.Equal(t, string(have), string(content), "%s: if the new content is right, run go test -update, or make generate for generated files", path)
}
