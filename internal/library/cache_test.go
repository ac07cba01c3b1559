package library

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// libDir is the directory of this machine's libraries.
var libDir = map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

// Our parser agrees with debug/elf for every library of this machine.
func TestSonameAgreesWithDebugELF(t *testing.T) {
	files, err := filepath.Glob(libDir + "/*.so*")
	require.NoError(t, err)
	n := 0
	for _, file := range files {
		want, wantErr := elfSoname(file)
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		got, err := Soname(f)
		_ = f.Close()
		if wantErr != nil {
			require.Error(t, err, file)
			continue
		}
		require.NoError(t, err, file)
		require.Equal(t, want, got, file)
		n++
	}
	require.Greater(t, n, 5)
}

func elfSoname(file string) (string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Type != elf.ET_DYN {
		return "", errELF
	}
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[0], nil
}

// A cache with many entries that share one long string would become many times as long.
func TestCacheOfOverlappingStringsIsNotUnfolded(t *testing.T) {
	c := Cache{Entries: []Entry{{Name: strings.Repeat("a", 4000), Path: strings.Repeat("b", 4000)}}}
	one := c.Bytes()
	const n = 100_000
	data := slices.Clone(one[:headerNew])
	binary.LittleEndian.PutUint32(data[20:], n)
	binary.LittleEndian.PutUint32(data[32:], 0)
	for range n {
		e := slices.Clone(one[headerNew : headerNew+entryNew])
		binary.LittleEndian.PutUint32(e[4:], headerNew+n*entryNew)
		binary.LittleEndian.PutUint32(e[8:], headerNew+n*entryNew)
		data = append(data, e...)
	}
	data = append(data, one[headerNew+entryNew:]...)
	_, err := ParseCache(data)
	require.ErrorContains(t, err, "overlap")
}

func TestCacheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`lib[a-z0-9+._-]{1,12}\.so(\.[0-9]{1,3}){0,2}`)
		c := Cache{HWCaps: rapid.SliceOfN(rapid.StringMatching(`x86-64-v[2-4]`), 0, 3).Draw(t, "hwcaps")}
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			c.Entries = append(c.Entries, Entry{
				Name: name.Draw(t, "name"), Path: "/" + name.Draw(t, "path"),
				Flags: rapid.SampledFrom([]int32{flagELF, flagELF | flagX8664, flagELF | flagARM64}).Draw(t, "flags"),
			})
		}
		once, err := ParseCache(c.Bytes())
		require.NoError(t, err)
		require.ElementsMatch(t, c.Entries, once.Entries)
		require.Len(t, once.HWCaps, len(c.HWCaps))
		for i := 1; i < len(once.Entries); i++ {
			require.GreaterOrEqual(t, compare(once.Entries[i-1].Name, once.Entries[i].Name), 0)
		}
		require.Equal(t, once.Bytes(), c.Bytes())
	})
}

func TestOldFormatInFrontIsSkipped(t *testing.T) {
	c := Cache{Entries: []Entry{{Name: "libc.so.6", Path: "/lib/libc.so.6", Flags: 3}}}
	old := make([]byte, headerOld+3*entryOld)
	copy(old, magicOld)
	old[12] = 3
	for len(old)%8 != 0 {
		old = append(old, 0)
	}
	got, err := ParseCache(append(old, c.Bytes()...))
	require.NoError(t, err)
	require.Equal(t, c.Entries, got.Entries)
}

func FuzzCache(f *testing.F) {
	entries := []Entry{{Name: "libc.so.6", Path: "/lib/libc.so.6", Flags: 3}, {Name: "a", Path: "b", HWCap: hwcapExtension}}
	f.Add(Cache{Entries: entries, HWCaps: []string{"x86-64-v3"}}.Bytes())
	if data, err := os.ReadFile("/etc/ld.so.cache"); err == nil && len(data) < 200_000 {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCache(data)
		if err != nil {
			return
		}
		again, err := ParseCache(c.Bytes())
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if len(again.Entries) != len(c.Entries) || len(again.HWCaps) != len(c.HWCaps) {
			t.Fatalf("%d entries became %d", len(c.Entries), len(again.Entries))
		}
	})
}

func FuzzSoname(f *testing.F) {
	if data, err := os.ReadFile(filepath.Join(libDir, "libdl.so.2")); err == nil {
		f.Add(data)
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		name, err := Soname(strings.NewReader(string(data)))
		if err == nil && (len(name) > maxSoname || strings.ContainsAny(name, "/\x00")) {
			t.Fatalf("soname %q", name)
		}
	})
}

func FuzzCompare(f *testing.F) {
	f.Add("libz.so.1.10", "libz.so.1.9")
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsRune(a+b, 0) || strings.ContainsFunc(a+b, func(r rune) bool { return r > 127 }) {
			return
		}
		if x, y := compare(a, b), compare(b, a); (x > 0) != (y < 0) && !overflows(a) && !overflows(b) {
			t.Fatalf("compare(%q, %q) = %d, the other way %d", a, b, x, y)
		}
	})
}

// overflows reports whether a number in s does not fit into a C int, for which glibc's order
// is inconsistent.
func overflows(s string) bool {
	run := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			run = 0
		} else if run++; run > 8 {
			return true
		}
	}
	return false
}
