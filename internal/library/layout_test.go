package library_test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/internal/library/librarytest"
)

func open(t testing.TB, dir string) *host.Root {
	t.Helper()
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestLibrariesAreFoundInEveryLayout(t *testing.T) {
	for _, l := range librarytest.Layouts(t) {
		t.Run(l.Name, func(t *testing.T) {
			dir := t.TempDir()
			l.Make(t, dir)
			root := open(t, dir)
			f := library.New(root)
			for _, soname := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
				real, found := f.Find(soname, l.Version)
				require.True(t, found, soname)
				version := library.Version(real)
				require.True(t, version == l.Version || version == "" && strings.HasPrefix(real, "/usr/lib/"), real)
			}
			require.NoError(t, f.Err())
			for at, kind := range l.Files {
				if kind != "" || library.Version(at) != l.Version || strings.Contains(at, "/vdpau/") || strings.Contains(at, "/xorg/") {
					continue
				}
				real, found := f.Find(filepath.Base(at), l.Version)
				require.True(t, found, at)
				want, err := root.Resolve(at)
				require.NoError(t, err)
				require.Equal(t, want, real)
			}
		})
	}
}

func TestLibraryOfTheGivenVersionIsPreferred(t *testing.T) {
	dir := t.TempDir()
	for at, soname := range map[string]string{
		"/usr/lib64/libcuda.so.570.1": "libcuda.so.1", "/opt/nvidia/lib64/libcuda.so.580.95.05": "libcuda.so.1",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(dir+at), 0o755))
		require.NoError(t, os.WriteFile(dir+at, librarytest.Library(soname), 0o755))
		require.NoError(t, os.Symlink(filepath.Base(at), filepath.Join(filepath.Dir(dir+at), soname)))
	}
	f := library.New(open(t, dir))
	for version, want := range map[string]string{
		"580.95.05": "/opt/nvidia/lib64/libcuda.so.580.95.05", "570.1": "/usr/lib64/libcuda.so.570.1",
		"": "/usr/lib64/libcuda.so.570.1", "999.1": "/usr/lib64/libcuda.so.570.1",
	} {
		real, found := f.Find("libcuda.so.1", version)
		require.True(t, found)
		require.Equal(t, want, real, "version %q", version)
	}
	require.Equal(t, []string{"/opt/nvidia/lib64"}, f.Holding("580.95.05"))
}

func TestHostileCacheIsBoundedAndNoted(t *testing.T) {
	entry := func(name, path string) library.Entry {
		return library.Entry{Name: name, Path: path, Flags: library.Flags()}
	}
	whole := library.Cache{Entries: []library.Entry{entry("libcuda.so.1", "/srv/lib/libcuda.so.1")}}
	var many library.Cache
	for i := range 1000 {
		many.Entries = append(many.Entries, entry("libcuda.so.1", fmt.Sprintf("/srv/%d/libcuda.so.1", i)))
	}
	for name, c := range map[string]struct {
		cache []byte
		want  []string
		note  string
	}{
		"whole":            {whole.Bytes(), []string{"/srv/lib"}, ""},
		"other libraries":  {library.Cache{Entries: []library.Entry{entry("libc.so.6", "/srv/lib/libc.so.6")}}.Bytes(), nil, ""},
		"another machine":  {library.Cache{Entries: []library.Entry{{Name: "libcuda.so.1", Path: "/srv/lib/libcuda.so.1", Flags: 3}}}.Bytes(), nil, ""},
		"a relative path":  {library.Cache{Entries: []library.Entry{entry("libcuda.so.1", "srv/lib/libcuda.so.1")}}.Bytes(), nil, ""},
		"out of the root":  {library.Cache{Entries: []library.Entry{entry("libcuda.so.1", "/../../../../srv/lib/../lib/libcuda.so.1")}}.Bytes(), []string{"/srv/lib"}, ""},
		"cut":              {whole.Bytes()[:60], nil, "is not used"},
		"text":             {[]byte("/srv/lib\n"), nil, "is not used"},
		"a thousand":       {many.Bytes(), nil, "names more than 64 folders"},
		"a folder instead": {nil, nil, "is not used"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(dir+"/srv/lib", 0o755))
			require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
			if c.cache == nil {
				require.NoError(t, os.MkdirAll(dir+library.CachePath, 0o755))
			} else {
				require.NoError(t, os.WriteFile(dir+library.CachePath, c.cache, 0o644))
			}
			f := library.New(open(t, dir))
			var found []string
			for folder := range f.Folders() {
				found = append(found, folder.Path)
			}
			require.Equal(t, c.want, found)
			if c.note == "" {
				require.NoError(t, f.Err())
			} else {
				require.ErrorContains(t, f.Err(), c.note)
			}
		})
	}
}

func TestWatchedFilesAreInTheFoldersThatAreThere(t *testing.T) {
	dir := t.TempDir()
	librarytest.Named(t, "debian-12-tesla").Make(t, dir+"/run/nvidia/driver")
	files := library.WatchedFiles(open(t, dir), "/run/nvidia/driver", "libcuda.so.1")
	require.Contains(t, files, "/run/nvidia/driver/etc/ld.so.cache")
	require.Contains(t, files, "/run/nvidia/driver/usr/lib64/libcuda.so.1", "a folder that may appear")
	require.True(t, slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "-linux-gnu/nvidia/tesla/libcuda.so.1") }), "%v", files)
	require.True(t, slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "-linux-gnu/nvidia/tesla*") }), "an alternative that may appear")
}

func TestMadeLibraryHasItsSoname(t *testing.T) {
	data := librarytest.Library("libcuda.so.1")
	got, err := library.Soname(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, "libcuda.so.1", got)
	file, err := elf.NewFile(bytes.NewReader(data))
	require.NoError(t, err)
	names, err := file.DynString(elf.DT_SONAME)
	require.NoError(t, err)
	require.Equal(t, []string{"libcuda.so.1"}, names)
}

func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	librarytest.Named(b, "ubuntu").Make(b, dir)
	root := open(b, dir)
	for b.Loop() {
		_, found := library.New(root).Find("libnvidia-ml.so.1", "580.95.05")
		require.True(b, found)
	}
}
