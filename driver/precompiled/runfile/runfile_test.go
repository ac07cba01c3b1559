package runfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // as installers have it
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
)

type entry struct {
	tar.Header
	text string
}

func file(name, text string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}, text}
}

// installer writes a file in makeself's format.
func installer(t *testing.T, compress func(io.Writer) io.WriteCloser, entries ...entry) string {
	t.Helper()
	var archive bytes.Buffer
	z := compress(&archive)
	w := tar.NewWriter(z)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	script := "skip=15\nskip_decompress=13\nsize_decompress=2\nlabel=\"NVIDIA Accelerated Graphics Driver for Linux-x86_64 (580.95.05)\"\nversion_string=580.95.05\n" +
		"pkg_version=0\nscript=./nvidia-installer\nTARGET_OS=\"Linux\"\nTARGET_ARCH=\"x86_64\"\n"
	// Two lines of a program that uncompresses are in between.
	body := script[strings.Index(script, "\n")+1:] + "\x7fELF\x00\n\x00\n" + archive.String()
	text := fmt.Sprintf("#! /bin/sh\nCRCsum=1\nMD5=%x\nskip=15\n%s", md5.Sum([]byte("skip=15\n"+body)), body) //nolint:gosec // as above
	at := filepath.Join(t.TempDir(), "driver.run")
	require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	return at
}

func byGzip(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

func byXZ(w io.Writer) io.WriteCloser {
	z, err := xz.WriterConfig{NoCheckSum: true}.NewWriter(w) // as NVIDIA's have it
	if err != nil {
		panic(err)
	}
	return z
}

func byZstd(w io.Writer) io.WriteCloser {
	z, err := zstd.NewWriter(w)
	if err != nil {
		panic(err)
	}
	return z
}

func TestUnpack(t *testing.T) {
	link := entry{tar.Header{Name: "./lib/libcuda.so.1", Typeflag: tar.TypeSymlink, Linkname: "../libcuda.so.580.95.05"}, ""}
	for name, compress := range map[string]func(io.Writer) io.WriteCloser{"gzip": byGzip, "xz": byXZ, "zstd": byZstd} {
		to := filepath.Join(t.TempDir(), "unpacked")
		h, err := Unpack(t.Context(), installer(t, compress, file("./libcuda.so.580.95.05", "the library"), link), to)
		require.NoError(t, err, name)
		require.Equal(t, "580.95.05 Linux x86_64", h.Version+" "+h.OS+" "+h.Arch)
		text, err := os.ReadFile(filepath.Join(to, "lib/libcuda.so.1"))
		require.NoError(t, err, name)
		require.Equal(t, "the library", string(text))
	}
}

func TestInvalidInstallersAreRejected(t *testing.T) {
	for want, e := range map[string]entry{
		"not a path below":   file("../outside", ""),
		"leads out":          {tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../../etc"}, ""},
		"neither a file":     {tar.Header{Name: "null", Typeflag: tar.TypeChar}, ""},
		"leads out of the a": {tar.Header{Name: "b", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ""},
	} {
		_, err := Unpack(t.Context(), installer(t, byGzip, e), filepath.Join(t.TempDir(), "unpacked"))
		require.ErrorContains(t, err, want)
	}
	through := entry{tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "."}, ""}
	out := entry{tar.Header{Name: "s/s/s/t/l", Typeflag: tar.TypeSymlink, Linkname: "../../../../x"}, ""}
	_, err := Unpack(t.Context(), installer(t, byGzip, through, out), filepath.Join(t.TempDir(), "unpacked"))
	require.ErrorContains(t, err, "is a symbolic link")
	at := installer(t, byGzip, file("a", "text"))
	whole, err := os.ReadFile(at)
	require.NoError(t, err)
	for want, text := range map[string][]byte{
		"it is damaged":            append(whole, '\n'),
		"it is not an installer":   []byte("\x7fELF"),
		"is not the line at which": []byte("#!/bin/sh\nlabel=\"x\"\n"),
		"ends before its archive":  []byte("#!/bin/sh\nskip=90\n"),
		"is not a number":          []byte("#!/bin/sh\nskip=$((1))\n"),
	} {
		require.NoError(t, os.WriteFile(at, text, 0o644))
		_, err := Unpack(t.Context(), at, filepath.Join(t.TempDir(), "unpacked"))
		require.ErrorContains(t, err, want)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte("#! /bin/sh\nCRCsum=1\nMD5=00000000000000000000000000000000\nskip=1112\nversion_string=580.95.05\nTARGET_OS=\"Linux\"\n"))
	f.Add([]byte("#!\nskip=99999999999999999999"))
	f.Add([]byte("#!\nMD5=\nskip=5\n# body\nskip=7"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ParseHeader(bytes.NewReader(data))
		if err != nil {
			if len(err.Error()) > 500 {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if h.Skip < 5 || h.Skip > maxLines || h.MD5 != "" && len(h.MD5) != 32 {
			t.Fatalf("%+v", h)
		}
	})
}
