// Package golden compares what tests make with files that are checked in, such as expected
// output and generated files. go test -update writes the files anew.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if string(have) != string(content) {
		t.Fatalf("%s: if the new content is right, run go test -update, or make generate for generated files; -there +made:\n%s",
			path, cmp.Diff(strings.Split(string(have), "\n"), strings.Split(string(content), "\n")))
	}
}

// RequireSection does the same with the part of a file between two lines.
func RequireSection(t testing.TB, path, begin, end, content string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok, "%s has no line %q", path, begin)
	_, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no line %q", path, end)
	Require(t, path, head+begin+content+end+tail)
}
