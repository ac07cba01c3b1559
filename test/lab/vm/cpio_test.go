package vm

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// readArchive returns the entries of an archive in their order: "mode name: data".
func readArchive(t *testing.T, data []byte) []string {
	t.Helper()
	var entries []string
	at := 0
	field := func(i int) int {
		n, err := strconv.ParseUint(string(data[at+6+8*i:at+14+8*i]), 16, 32)
		require.NoError(t, err)
		return int(n)
	}
	align := func(n int) int { return (n + 3) / 4 * 4 }
	for {
		require.Equal(t, "070701", string(data[at:at+6]))
		mode, size, length := field(1), field(6), field(11)
		name := string(data[at+110 : at+110+length-1])
		require.Zero(t, data[at+110+length-1])
		at = align(at + 110 + length)
		if name == "TRAILER!!!" {
			require.Len(t, data, at)
			return entries
		}
		entries = append(entries, fmt.Sprintf("%o %s: %s", mode, name, data[at:at+size]))
		at = align(at + size)
	}
}

func TestArchiveHasFoldersBeforeTheirContents(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(source, []byte("elf"), 0o700))
	var b bytes.Buffer
	require.NoError(t, writeArchive(&b, Files{
		"/lib/modules/6.1/a.ko": {Data: []byte("12345")},
		"/init":                 {Source: source},
		"/usr/bin/p":            Program(source),
		"/bin/sh":               {Link: "p"},
		"/tmp":                  {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"/root":                 {Mode: fs.ModeDir | 0o700},
	}))
	require.Equal(t, []string{
		"120777 bin: usr/bin",
		"100700 init: elf",
		"120777 lib: usr/lib",
		"120777 lib64: usr/lib64",
		"40700 root: ",
		"120777 sbin: usr/sbin",
		"41777 tmp: ",
		"40755 usr: ",
		"40755 usr/bin: ",
		"100755 usr/bin/p: elf",
		"120777 usr/bin/sh: p",
		"40755 usr/lib: ",
		"40755 usr/lib/modules: ",
		"40755 usr/lib/modules/6.1: ",
		"100644 usr/lib/modules/6.1/a.ko: 12345",
		"40755 usr/lib64: ",
		"40755 usr/sbin: ",
	}, readArchive(t, b.Bytes()))
}

func TestArchiveNamesAMissingFile(t *testing.T) {
	err := writeArchive(&bytes.Buffer{}, Files{"/usr/bin/p": Program("/nowhere/p")})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "file /usr/bin/p of the machine")
}

func TestFolderKeepsLinksAndPermissions(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub/program"), nil, 0o755))
	require.NoError(t, os.Symlink("sub/program", filepath.Join(dir, "link")))
	files, err := Folder(dir, "/opt")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), files["/opt/sub/program"].Mode)
	require.Equal(t, filepath.Join(dir, "sub/program"), files["/opt/sub/program"].Source)
	require.Equal(t, "sub/program", files["/opt/link"].Link)
	require.True(t, files["/opt/sub"].Mode.IsDir())
}
