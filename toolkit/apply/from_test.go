package apply

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

// program returns a file of this process and the item that installs it on the host.
func program(t *testing.T, data []byte) (string, []Item) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(at, data, 0o600))
	return at, []Item{{Path: "/program", File: &File{From: at, Mode: 0o755}}}
}

func TestProgramIsOnlyWrittenIfItDiffers(t *testing.T) {
	data := bytes.Repeat([]byte("\x7fELF"), 3*chunk/4+1)
	for name, spoil := range map[string]func(t *testing.T, at string){
		"nothing":    nil,
		"last byte":  func(t *testing.T, at string) { write(t, at, append(bytes.Clone(data[:len(data)-1]), 'x')) },
		"first byte": func(t *testing.T, at string) { write(t, at, append([]byte("x"), data[1:]...)) },
		"shorter":    func(t *testing.T, at string) { write(t, at, data[:chunk]) },
		"longer":     func(t *testing.T, at string) { write(t, at, append(bytes.Clone(data), 0)) },
		"mode":       func(t *testing.T, at string) { require.NoError(t, os.Chmod(at, 0o700)) },
		"gone":       func(t *testing.T, at string) { require.NoError(t, os.Remove(at)) },
		"now a link": func(t *testing.T, at string) {
			require.NoError(t, os.Rename(at, at+"2"))
			require.NoError(t, os.Symlink("program2", at))
		},
		"of no bytes": func(t *testing.T, at string) { write(t, at, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, root := open(t)
			from, items := program(t, data)
			converge(t, root, items, 1)
			if spoil != nil {
				spoil(t, dir+"/program")
				changes := converge(t, root, items, 1)
				require.Equal(t, data, changes[0].File.Data)
				require.Empty(t, changes[0].File.From)
			}
			converge(t, root, items, 0)
			now, err := os.ReadFile(dir + "/program")
			require.NoError(t, err)
			require.Equal(t, data, now)
			write(t, from, []byte("another version"))
			converge(t, root, items, 1)
			converge(t, root, items, 0)
		})
	}
}

func write(t *testing.T, at string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(at, data, 0o755))
}

// converge plans and applies, and checks the number of changes.
func converge(t *testing.T, root *host.Root, items []Item, want int) []Change {
	t.Helper()
	changes, err := Plan(root, items)
	require.NoError(t, err)
	require.Len(t, changes, want)
	mustWrite(t, root, changes)
	return changes
}

func TestMissingSourceProgramIsAnError(t *testing.T) {
	_, root := open(t)
	at, items := program(t, []byte("x"))
	require.NoError(t, os.Remove(at))
	_, err := Plan(root, items)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, at)
}

func TestDirectoryAtTheProgramsPathIsKept(t *testing.T) {
	dir, root := open(t)
	_, items := program(t, []byte("x"))
	require.NoError(t, os.Mkdir(dir+"/program", 0o755))
	_, err := Plan(root, items)
	require.ErrorContains(t, err, "/program is a directory")
}

// A quiet process keeps the memory that a plan leaves behind.
func TestInstalledProgramIsNotReadIntoMemory(t *testing.T) {
	const size = 8 << 20
	_, root := open(t)
	_, items := program(t, bytes.Repeat([]byte("x"), size))
	converge(t, root, items, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	converge(t, root, items, 0)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size/8))
}
