package binaries

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BINARIES_TEST_ENSURE"); dir != "" { // a process to be killed
		_, err := ensure(context.Background(), testModules, options(dir))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leak.Main(m)
}

// testModules are built with a stand-in for the go command.
var testModules = []module{
	{name: "fruit", project: "example.com/fruit", ldflags: "-X main.version={version}", binaries: []program{
		{"apple", "example.com/fruit/cmd/apple", time.Minute},
		{"pear", "example.com/fruit/cmd/pear", time.Minute},
	}},
	{name: "tree", project: "example.com/tree/v2", cgo: true, binaries: []program{
		{"oak", "example.com/tree/v2", time.Minute},
	}},
}

// goCommand stands in for Go. It logs each build, waits at the gate if there is one, and fails
// half-way on request.
const goCommand = `#!/bin/sh
here=$(dirname "$0")
case $1 in
env) cat "$here/env"; exit ;;
esac
while [ "$1" != -o ]; do shift; done
echo "$3" >>"$here/built"
echo "$3/internal/seed" >&2
printf half >"$2"
if [ -p "$here/gate" ]; then
	echo >"$here/reached"
	read -r _ <"$here/gate"
fi
if [ -e "$here/fail" ]; then
	cat "$here/fail" >&2
	exit 1
fi
echo "whole $3" >"$2"
chmod +x "$2"
`

// workshop creates a folder with two modules, the stand-in and an empty cache.
func workshop(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, built.WriteProgram(filepath.Join(dir, "go"), []byte(goCommand), 0o755))
	write(t, dir, "env", "go1.99.0\nlinux\namd64\nv1\n\n")
	write(t, dir, "source/fruit/go.mod", "module m\n\ngo 1.26.0\n\nrequire (\n\texample.com/fruit v1.2.3 // indirect\n)\n")
	write(t, dir, "source/fruit/go.sum", "sums\n")
	write(t, dir, "source/tree/go.mod", "module m\n\nrequire example.com/tree/v2 v2.0.1 // indirect\n")
	write(t, dir, "source/tree/go.sum", "sums\n")
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func options(dir string) Options {
	return Options{Cache: filepath.Join(dir, "cache"), Source: filepath.Join(dir, "source"), Go: filepath.Join(dir, "go")}
}

// builds returns what the stand-in has built since the last call.
func builds(t *testing.T, dir string) []string {
	t.Helper()
	path := filepath.Join(dir, "built")
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	return strings.Fields(string(data))
}

// cached returns the names of the folders in the cache, without the hashes of modules.
func cached(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "cache/binaries"))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		if name := e.Name(); e.IsDir() {
			names = append(names, name[:strings.LastIndexByte(name, '-')])
		}
	}
	return names
}

var (
	fruit = []string{"example.com/fruit/cmd/apple", "example.com/fruit/cmd/pear"}
	tree  = []string{"example.com/tree/v2"}
	all   = []string{fruit[0], fruit[1], tree[0]}
)

// textWaiter is a writer that closes done when the text want has been written.
type textWaiter struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	done chan struct{} // closed once want was written
}

func newTextWaiter(want string) *textWaiter {
	return &textWaiter{want: want, done: make(chan struct{})}
}

func (h *textWaiter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := strings.Contains(h.text.String(), h.want)
	h.text.Write(p)
	if !before && strings.Contains(h.text.String(), h.want) {
		close(h.done)
	}
	return len(p), nil
}

func TestCachedBinariesAreNotRebuilt(t *testing.T) {
	dir := workshop(t)
	o := options(dir)
	var out strings.Builder
	o.Out = &out
	first, err := ensure(t.Context(), testModules, o)
	require.NoError(t, err)
	require.Equal(t, all, builds(t, dir))
	data, err := os.ReadFile(first.Path("pear"))
	require.NoError(t, err)
	require.Equal(t, "whole example.com/fruit/cmd/pear\n", string(data))
	require.Len(t, filepath.SplitList(first.SearchPath()), 2)
	require.Regexp(t, `^building fruit v1.2.3, tree v2.0.1: .*, then they are kept in .*/cache/binaries
apple v1.2.3: building, .*
apple v1.2.3: built in 0s, 0 MB
pear v1.2.3: building, .*
pear v1.2.3: built in 0s, 0 MB
oak v2.0.1: building, .*
oak v2.0.1: built in 0s, 0 MB
$`, out.String())

	out.Reset()
	second, err := ensure(t.Context(), testModules, o)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Empty(t, builds(t, dir))
	require.Empty(t, out.String())
}

func TestAChangedInputRebuildsItsModule(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string, m []module)
		want   []string
	}{
		{"its go.mod", func(t *testing.T, dir string, _ []module) {
			write(t, dir, "source/tree/go.mod", "module m\n\nrequire example.com/tree/v2 v2.0.2 // indirect\n")
		}, tree},
		{"its go.sum", func(t *testing.T, dir string, _ []module) { write(t, dir, "source/fruit/go.sum", "other\n") }, fruit},
		{"its flags", func(_ *testing.T, _ string, m []module) { m[0].flags = "-tags=ripe" }, fruit},
		{"its linker flags", func(_ *testing.T, _ string, m []module) { m[1].ldflags = "-X main.leaf=green" }, tree},
		{"its C", func(_ *testing.T, _ string, m []module) { m[1].cgo = false }, tree},
		{"its binaries", func(_ *testing.T, _ string, m []module) {
			m[1].binaries = append(m[1].binaries, program{"ash", "example.com/tree/v2/ash", 0})
		}, append(tree, "example.com/tree/v2/ash")},
		{"Go's version", func(t *testing.T, dir string, _ []module) { write(t, dir, "env", "go1.99.1\nlinux\namd64\nv1\n\n") }, all},
		{"the architecture", func(t *testing.T, dir string, _ []module) { write(t, dir, "env", "go1.99.0\nlinux\narm64\n\nv8.0\n") }, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := workshop(t)
			_, err := ensure(t.Context(), testModules, options(dir))
			require.NoError(t, err)
			builds(t, dir)

			changed := append([]module(nil), testModules...)
			c.change(t, dir, changed)
			_, err = ensure(t.Context(), changed, options(dir))
			require.NoError(t, err)
			require.Equal(t, c.want, builds(t, dir))
		})
	}
}

func TestAFailedBuildLeavesNothingAndNamesARemedy(t *testing.T) {
	dir := workshop(t)
	write(t, dir, "fail", "# example.com/fruit/cmd/apple\nPackage libseccomp was not found in the pkg-config search path.\n")
	_, err := ensure(t.Context(), testModules, options(dir))
	require.EqualError(t, err, `build apple v1.2.3: exit status 1; pkg-config or the headers of libseccomp are missing: run .ci/packages.sh cluster
  its last lines:
    # example.com/fruit/cmd/apple
    Package libseccomp was not found in the pkg-config search path.
  the command:
    cd `+dir+`/source/fruit && CGO_ENABLED=0 `+dir+`/go build -v -trimpath '-ldflags=-s -w -X main.version=v1.2.3' -o `+
		commandPath(err)+` example.com/fruit/cmd/apple`)
	require.Empty(t, cached(t, dir))

	require.NoError(t, os.Remove(filepath.Join(dir, "fail")))
	builds(t, dir)
	_, err = ensure(t.Context(), testModules, options(dir))
	require.NoError(t, err)
	require.Equal(t, all, builds(t, dir))
}

// commandPath returns the path to which the command in an error writes its binary.
func commandPath(err error) string {
	_, after, _ := strings.Cut(err.Error(), " -o ")
	path, _, _ := strings.Cut(after, " ")
	return path
}

func TestABuildEndsWithItsContext(t *testing.T) {
	dir := workshop(t)
	gate(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := ensure(ctx, testModules, options(dir))
		ended <- err
	}()
	syncWith(t, dir, "reached")
	cancel()
	err := <-ended
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "build apple v1.2.3: context canceled; run it again: what was compiled already is kept")
	require.Empty(t, cached(t, dir))
}

func TestAKilledBuildLeavesNoEntry(t *testing.T) {
	dir := workshop(t)
	gate(t, dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BINARIES_TEST_ENSURE="+dir)
	require.NoError(t, cmd.Start())
	syncWith(t, dir, "reached")
	require.NoError(t, cmd.Process.Kill())
	require.ErrorContains(t, cmd.Wait(), "killed")
	require.Equal(t, []string{".building-fruit"}, cached(t, dir))

	require.NoError(t, os.Remove(filepath.Join(dir, "gate")))
	builds(t, dir)
	_, err := ensure(t.Context(), testModules, options(dir))
	require.NoError(t, err)
	require.Equal(t, all, builds(t, dir))
	require.Equal(t, []string{"fruit-v1.2.3", "tree-v2.0.1"}, cached(t, dir))
}

func TestConcurrentCallsBuildOnce(t *testing.T) {
	dir := workshop(t)
	gate(t, dir)
	results := make(chan Dir, 2)
	errs := make(chan error, 2)
	start := func(h *textWaiter) {
		o := options(dir)
		o.Out = h
		d, err := ensure(t.Context(), testModules[:1], o)
		results <- d
		errs <- err
	}
	go start(newTextWaiter(""))
	syncWith(t, dir, "reached") // the first builds
	second := newTextWaiter(fmt.Sprintf("fruit v1.2.3: waiting for another build, process %d\n", os.Getpid()))
	go start(second)
	<-second.done
	syncWith(t, dir, "gate")
	syncWith(t, dir, "reached")
	syncWith(t, dir, "gate") // of the second binary
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	require.Equal(t, <-results, <-results)
	require.Equal(t, fruit, builds(t, dir))
	require.Contains(t, second.text.String(), "fruit v1.2.3: built by the other process\n")
}

func TestWaitingForAnotherBuildEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, nil)
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = lock(ctx, path, func(string) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestABrokenEntryIsRebuilt(t *testing.T) {
	for _, c := range []struct {
		name, says string
		breaks     func(t *testing.T, entry string)
	}{
		{"a binary that is gone", "it has no pear", func(t *testing.T, entry string) { require.NoError(t, os.Remove(filepath.Join(entry, "pear"))) }},
		{"a binary cut short", "pear has 3 bytes, not 33", func(t *testing.T, entry string) { require.NoError(t, os.Truncate(filepath.Join(entry, "pear"), 3)) }},
		{"a binary without its mode", "pear is no program", func(t *testing.T, entry string) {
			require.NoError(t, os.Chmod(filepath.Join(entry, "pear"), 0o644))
		}},
		{"no record", "it has no entry.json", func(t *testing.T, entry string) { require.NoError(t, os.Remove(filepath.Join(entry, record))) }},
		{"an empty record", "its entry.json: unexpected end", func(t *testing.T, entry string) { require.NoError(t, os.Truncate(filepath.Join(entry, record), 0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := workshop(t)
			d, err := ensure(t.Context(), testModules, options(dir))
			require.NoError(t, err)
			builds(t, dir)
			c.breaks(t, filepath.Dir(d.Path("pear")))

			var out strings.Builder
			o := options(dir)
			o.Out = &out
			_, err = ensure(t.Context(), testModules, o)
			require.NoError(t, err)
			require.Equal(t, fruit, builds(t, dir))
			require.Contains(t, out.String(), filepath.Dir(d.Path("pear"))+" is broken: "+c.says)
			require.Equal(t, []string{"fruit-v1.2.3", "tree-v2.0.1"}, cached(t, dir))
		})
	}
}

func TestEntriesUnusedForAMonthAreRemovedByTheNextBuild(t *testing.T) {
	dir := workshop(t)
	ensured := func() Dir {
		d, err := ensure(t.Context(), testModules, options(dir))
		require.NoError(t, err)
		return d
	}
	age := func(path string, days int) {
		then := time.Now().AddDate(0, 0, -days)
		require.NoError(t, os.Chtimes(filepath.Dir(path), then, then))
	}
	old := ensured()
	write(t, dir, "source/fruit/go.sum", "other\n")
	recent := ensured()
	age(old.Path("apple"), 31)
	age(recent.Path("apple"), 29)
	age(recent.Path("oak"), 300)
	ensured() // uses the oak

	write(t, dir, "source/fruit/go.sum", "yet others\n")
	ensured()
	require.NoDirExists(t, filepath.Dir(old.Path("apple")))
	require.FileExists(t, recent.Path("apple"))
	require.FileExists(t, recent.Path("oak"))
}

func TestWithoutGoTheErrorNamesIt(t *testing.T) {
	o := options(workshop(t))
	o.Go = "go-that-nobody-has"
	_, err := ensure(t.Context(), testModules, o)
	require.ErrorIs(t, err, exec.ErrNotFound)
	require.ErrorContains(t, err, "see that `go-that-nobody-has version` works")
}

func TestTheEnvironmentSelectsTheCache(t *testing.T) {
	t.Setenv("HOME", "/home/x")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("GPUREADY_CACHE", "")
	is := func(want string) {
		dir, err := DefaultCache()
		require.NoError(t, err)
		require.Equal(t, want, dir)
	}
	is("/home/x/.cache/gpuready")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	is("/xdg/gpuready")
	t.Setenv("GPUREADY_CACHE", "/cache")
	is("/cache")
}

// gate makes the stand-in report that it has reached the gate, and wait there.
func gate(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"gate", "reached"} {
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o644))
	}
}

// syncWith waits until the stand-in has reached the gate, or opens the gate.
func syncWith(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if name == "gate" {
		require.NoError(t, os.WriteFile(path, []byte("\n"), 0o644))
		return
	}
	_, err := os.ReadFile(path)
	require.NoError(t, err)
}
