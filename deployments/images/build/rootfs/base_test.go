package rootfs

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKeep(t *testing.T) {
	for name, want := range map[string]string{
		"./lib/x86_64-linux-gnu/libc.so.6":              "/usr/lib/x86_64-linux-gnu/libc.so.6",
		"./usr/lib/x86_64-linux-gnu/libm.so.6":          "/usr/lib/x86_64-linux-gnu/libm.so.6",
		"./lib64/ld-linux-x86-64.so.2":                  "/usr/lib64/ld-linux-x86-64.so.2",
		"./lib/ld-linux-aarch64.so.1":                   "/usr/lib/ld-linux-aarch64.so.1",
		"./usr/lib/os-release":                          "/usr/lib/os-release",
		"./etc/ld.so.conf.d/x86_64-linux-gnu.conf":      "/etc/ld.so.conf.d/x86_64-linux-gnu.conf",
		"./usr/share/doc/libc6/copyright":               "/usr/share/doc/libc6/copyright",
		"./usr/share/doc/libgcc-s1":                     "/usr/share/doc/libgcc-s1",
		"./usr/share/common-licenses/LGPL-2.1":          "/usr/share/common-licenses/LGPL-2.1",
		"./usr/share/doc/libc6/changelog.gz":            "",
		"./usr/share/ca-certificates/mozilla/A.crt":     "/usr/share/ca-certificates/mozilla/A.crt",
		"./usr/sbin/update-ca-certificates":             "",
		"./usr/lib/x86_64-linux-gnu/gconv/UTF-16.so":    "",
		"./usr/lib/x86_64-linux-gnu/libnss_hesiod.so.2": "",
		"./usr/lib/x86_64-linux-gnu/x/libc.so.6":        "",
		"./usr/bin/ldd":                                 "",
		"./sbin/ldconfig":                               "",
		"./etc/profile.d/x.sh":                          "",
		"./etc/../usr/bin/sh":                           "",
	} {
		got, ok := PathInBase(name)
		require.Equal(t, want != "", ok, name)
		if ok {
			require.Equal(t, want, got)
		}
	}
}

// authorities are the certificates by name: a process reads those of the system once, so a second run of a test
// needs the same.
var authorities = map[string][]byte{}

// authority is the certificate of an authority, PEM, as Debian's package has it.
func authority(t *testing.T, name string) []byte {
	t.Helper()
	if c, made := authorities[name]; made {
		return c
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	authorities[name] = bytes.TrimSpace(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) // some end without a newline
	return authorities[name]
}

func TestGoFindsTheBundledAuthorities(t *testing.T) {
	entries, err := BundleCertificates([]Entry{
		{Path: authorityDir + "B.crt", Data: authority(t, "B")}, {Path: "/etc/passwd"}, {Path: authorityDir + "A.crt", Data: authority(t, "A")},
	})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, Bundle, entries[1].Path)
	file := filepath.Join(t.TempDir(), "bundle")
	require.NoError(t, os.WriteFile(file, entries[1].Data, 0o644))
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	roots, err := x509.SystemCertPool()
	require.NoError(t, err)
	var names []string
	for rest := entries[1].Data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		_, err = c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		require.NoError(t, err)
		names = append(names, c.Subject.CommonName)
	}
	require.Equal(t, []string{"A", "B"}, names)

	_, err = BundleCertificates([]Entry{{Path: "/etc/passwd"}})
	require.ErrorContains(t, err, "package ca-certificates has nothing in")
	_, err = BundleCertificates([]Entry{{Path: authorityDir + "A.crt", Data: []byte("x")}})
	require.ErrorContains(t, err, "A.crt of package ca-certificates is not a certificate")
}

func listing(t *testing.T, data []byte) []string {
	t.Helper()
	var lines []string
	in := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := in.Next()
		if err == io.EOF {
			return lines
		}
		require.NoError(t, err)
		require.EqualValues(t, 7, h.ModTime.Unix())
		line := h.FileInfo().Mode().String() + " " + h.Name
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		lines = append(lines, line)
	}
}

func TestArchiveDependsOnItsEntriesAlone(t *testing.T) {
	entries := append(Skeleton("amd64"), Status("libc6", []byte("Package: libc6\n")))
	var one, two bytes.Buffer
	require.NoError(t, WriteBase(&one, entries, time.Unix(7, 0)))
	slices.Reverse(entries)
	require.NoError(t, WriteBase(&two, entries, time.Unix(7, 0)))
	require.Equal(t, one.Bytes(), two.Bytes())
	require.Equal(t, []string{
		"Lrwxrwxrwx bin -> usr/bin", "drwxr-xr-x dev/", "drwxr-xr-x etc/", "-rw-r--r-- etc/group", "-rw-r--r-- etc/ld.so.conf",
		"-rw-r--r-- etc/nsswitch.conf", "-rw-r--r-- etc/passwd", "drwxr-xr-x home/", "drwx------ home/nonroot/",
		"Lrwxrwxrwx lib -> usr/lib", "Lrwxrwxrwx lib64 -> usr/lib64", "dr-xr-xr-x proc/", "drwx------ root/", "drwxr-xr-x run/",
		"Lrwxrwxrwx sbin -> usr/sbin", "dr-xr-xr-x sys/", "dtrwxrwxrwx tmp/", "drwxr-xr-x usr/", "drwxr-xr-x usr/bin/",
		"drwxr-xr-x usr/lib64/", "drwxr-xr-x usr/sbin/", "drwxr-xr-x var/", "drwxr-xr-x var/lib/", "drwxr-xr-x var/lib/dpkg/",
		"drwxr-xr-x var/lib/dpkg/status.d/", "-rw-r--r-- var/lib/dpkg/status.d/libc6", "Lrwxrwxrwx var/run -> /run", "dtrwxrwxrwx var/tmp/",
	}, listing(t, one.Bytes()))
}

func TestWriteRefusesDuplicatesAndLinkedFolders(t *testing.T) {
	file := Entry{Path: "/etc/x", Mode: 0o644}
	require.ErrorContains(t, WriteBase(io.Discard, []Entry{file, file}, time.Time{}), "/etc/x comes from two packages")
	link := Entry{Path: "/etc", Mode: fs.ModeSymlink | 0o777, Link: "usr"}
	require.ErrorContains(t, WriteBase(io.Discard, []Entry{file, link}, time.Time{}), "which is not a directory")
}

func TestParseURIs(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	got, err := ParseURIs("Note: something\n" +
		"'http://deb.example/libc6_2.36-9%2bdeb12u14_amd64.deb' libc6_2.36-9+deb12u14_amd64.deb 2759320 SHA256:" + a + "\n" +
		"'http://deb.example/base-files_12_amd64.deb' base-files_1%3a12_amd64.deb 70936 SHA256:" + b + "\n")
	require.NoError(t, err)
	require.Equal(t, []Package{
		{"base-files", "base-files_1%3a12_amd64.deb", b}, {"libc6", "libc6_2.36-9+deb12u14_amd64.deb", a},
	}, got)
	require.Equal(t, "1:12", got[0].Version())
	require.Equal(t, "2.36-9+deb12u14", got[1].Version())

	_, err = ParseURIs("'http://deb.example/x_1_amd64.deb' x_1_amd64.deb 1 MD5Sum:0123\n")
	require.ErrorContains(t, err, "are its sources signed?")
}

func TestLicenceOfLibgccIsFound(t *testing.T) {
	require.Equal(t, []string{"gcc-12-base"}, licencePackages("libgcc-s1\n  Depends: gcc-12-base\n  Depends: libc6\n"))
	require.Empty(t, licencePackages("libgcc-s1\n  Depends: libc6\n"))
}

func FuzzParseURIs(f *testing.F) {
	f.Add("'u' libc6_1_amd64.deb 1 SHA256:" + strings.Repeat("a", 64))
	f.Fuzz(func(_ *testing.T, text string) {
		packages, _ := ParseURIs(text)
		for _, p := range packages {
			p.Version()
		}
	})
}
