// Package librarytest makes driver roots as distributions and installers lay them out. The layouts
// are files in internal/library/testdata/layouts, with a line for each file of a package:
//
//	# what it is, and the source
//	driver 580.95.05
//	/usr/lib64/libcuda.so.580.95.05
//	/usr/lib64/libcuda.so.1 -> libcuda.so.580.95.05
//	/usr/lib/libcuda.so.580.95.05 (32-bit)
//	/srv/lib/libcuda.so.1 -> libcuda.so.580.95.05 (cache)
//
// A library's soname is the name of the link with a number beside it, or else its own. Paths with
// the folder of amd64 are those of the machine. (cache) marks the names in the loader's cache.
package librarytest

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/library"
)

// Layout is one layout of a driver's files.
type Layout struct {
	Name    string
	Version string            // of the driver
	Files   map[string]string // by path: "", "32-bit", or "-> target"
	Cached  []string          // the paths that the loader's cache has
}

// Layouts returns all layouts, sorted by name.
func Layouts(t testing.TB) []Layout {
	t.Helper()
	dir := filepath.Join(moduleRoot(t), "internal/library/testdata/layouts")
	files, err := filepath.Glob(dir + "/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	var all []Layout
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		l := Layout{Name: strings.TrimSuffix(filepath.Base(file), ".txt"), Files: map[string]string{}}
		for line := range strings.Lines(string(data)) {
			l.add(t, strings.TrimSpace(line))
		}
		require.NotEmpty(t, l.Version, file)
		all = append(all, l)
	}
	return all
}

// moduleRoot returns the folder with go.mod above the working directory.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		require.NotEqual(t, "/", dir, "no go.mod")
	}
}

func (l *Layout) add(t testing.TB, line string) {
	t.Helper()
	if version, ok := strings.CutPrefix(line, "driver "); ok {
		l.Version = version
		return
	}
	if line == "" || strings.HasPrefix(line, "#") {
		return
	}
	line = strings.ReplaceAll(line, "x86_64-linux-gnu", triplet)
	line, cached := strings.CutSuffix(line, " (cache)")
	line, foreign := strings.CutSuffix(line, " (32-bit)")
	at, target, isLink := strings.Cut(line, " -> ")
	require.True(t, path.IsAbs(at), line)
	switch {
	case isLink:
		l.Files[at] = "-> " + target
	case foreign:
		l.Files[at] = "32-bit"
	default:
		l.Files[at] = ""
	}
	if cached {
		l.Cached = append(l.Cached, at)
	}
}

var triplet = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// Named returns the layout of a name.
func Named(t testing.TB, name string) Layout {
	t.Helper()
	all := Layouts(t)
	i := slices.IndexFunc(all, func(l Layout) bool { return l.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return all[i]
}

// Make makes the layout's files below dir.
func (l Layout) Make(t testing.TB, dir string) {
	t.Helper()
	write := func(at string, data []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(dir+at), 0o755))
		require.NoError(t, os.WriteFile(dir+at, data, 0o755))
	}
	// Links between folders come first: files are written through them.
	for _, at := range slices.Sorted(maps.Keys(l.Files)) {
		if target, ok := strings.CutPrefix(l.Files[at], "-> "); ok {
			require.NoError(t, os.MkdirAll(filepath.Dir(dir+at), 0o755))
			require.NoError(t, os.Symlink(target, dir+at))
		}
	}
	for at, kind := range l.Files {
		switch kind {
		case "":
			write(at, Library(l.soname(at)))
		case "32-bit":
			write(at, append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 57)...))
		}
	}
	if len(l.Cached) == 0 {
		return
	}
	var cache library.Cache
	for _, at := range l.Cached {
		cache.Entries = append(cache.Entries, library.Entry{Name: path.Base(at), Path: at, Flags: library.Flags()})
	}
	write(library.CachePath, cache.Bytes())
}

var numbered = regexp.MustCompile(`\.so\.\d$`)

// soname returns the soname of a library of the layout.
func (l Layout) soname(file string) string {
	for at, kind := range l.Files {
		if path.Dir(at) == path.Dir(file) && kind == "-> "+path.Base(file) && numbered.MatchString(at) {
			return path.Base(at)
		}
	}
	return path.Base(file)
}

// Library returns a shared library of this machine that has a soname and no code.
func Library(soname string) []byte {
	const header, program, section = 64, 56, 64
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	text := append([]byte("\x00.dynstr\x00.dynamic\x00"), soname+"\x00"...)
	dynamicAt := uint64(header + 2*program)
	textAt := dynamicAt + 3*16
	sectionsAt := (textAt + uint64(len(text)) + 7) &^ 7
	size := sectionsAt + 3*section
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer takes everything
		}
	}
	put([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9), uint16(3), machine, uint32(1), uint64(0), uint64(header), sectionsAt,
		uint32(0), uint16(header), uint16(program), uint16(2), uint16(section), uint16(3), uint16(1))
	put(uint32(1), uint32(4), uint64(0), uint64(0), uint64(0), size, size, uint64(4096))                                // PT_LOAD
	put(uint32(2), uint32(4), dynamicAt, dynamicAt, dynamicAt, uint64(48), uint64(48), uint64(8))                       // PT_DYNAMIC
	put(uint64(5), textAt, uint64(14), uint64(len(text)-len(soname)-1), uint64(0), uint64(0))                           // DT_STRTAB, DT_SONAME, DT_NULL
	put(text, make([]byte, sectionsAt-textAt-uint64(len(text))), make([]byte, section))                                 // and the first section
	put(uint32(1), uint32(3), uint64(2), textAt, textAt, uint64(len(text)), uint32(0), uint32(0), uint64(1), uint64(0)) // SHT_STRTAB
	put(uint32(9), uint32(6), uint64(3), dynamicAt, dynamicAt, uint64(48), uint32(1), uint32(0), uint64(8), uint64(16)) // SHT_DYNAMIC
	return b.Bytes()
}
