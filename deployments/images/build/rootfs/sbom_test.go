package rootfs

import (
	"bytes"
	"io/fs"
	"runtime/debug"
	"testing"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/golden"
)

func image(t testing.TB) Description {
	t.Helper()
	tree := Tree{"/usr/share/doc/libgcc-s1": {Mode: fs.ModeSymlink | 0o777, Link: "gcc-12-base"}}
	for name, content := range map[string]string{
		"/usr/lib/os-release":                      "ID=debian\nVERSION_ID=\"12\"\n",
		"/var/lib/dpkg/status.d/libgcc-s1":         "Package: libgcc-s1\nSource: gcc-12 (12.2.0-14)\nVersion: 12.2.0-14+deb12u1\nArchitecture: amd64\nMaintainer: Debian GCC Maintainers <gcc@example.org>\nHomepage: http://gcc.gnu.org/\nDescription: GCC support library\n Longer: text\n",
		"/var/lib/dpkg/status.d/libgcc-s1.md5sums": "0  x\n",
		"/usr/share/doc/gcc-12-base/copyright":     "GPL\n",
		"/usr/bin/a_program":                       "program",
		"/usr/bin/other":                           "other",
	} {
		f, err := Regular(name, 0o644, []byte(content))
		require.NoError(t, err)
		tree = tree.With(map[string]File{name: f})
	}
	for name, deps := range map[string][]*debug.Module{
		"/usr/bin/a_program": {
			{Path: "k8s.io/api", Version: "v0.37.2", Sum: "h1:abc="},
			{Path: "example.org/x", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/y", Version: "v2.0.0+incompatible"}},
		},
		"/usr/bin/other": {{Path: "k8s.io/api", Version: "v0.37.2", Sum: "h1:abc="}},
	} {
		f := tree[name]
		f.Object = &Object{Go: &debug.BuildInfo{GoVersion: "go1.26.8", Path: "github.com/gpuready/gpuready/x", Deps: deps}}
		tree[name] = f
	}
	return Description{Name: "toolkit", Version: "v1.2.3", Revision: "0123abc", Arch: "amd64", Tree: tree, At: time.Unix(0, 0)}
}

func TestDocument(t *testing.T) {
	got, err := SBOM(image(t))
	require.NoError(t, err)
	golden.Require(t, "testdata/toolkit.spdx.json", got)
}

func TestEqualContentGivesEqualDocuments(t *testing.T) {
	one, err := SBOM(image(t))
	require.NoError(t, err)
	two, err := SBOM(image(t))
	require.NoError(t, err)
	require.Equal(t, one, two)

	other := image(t)
	f := other.Tree["/usr/bin/other"]
	f.SHA256 = "0"
	other.Tree["/usr/bin/other"] = f
	three, err := SBOM(other)
	require.NoError(t, err)
	a, err := json.Read(bytes.NewReader(one))
	require.NoError(t, err)
	b, err := json.Read(bytes.NewReader(three))
	require.NoError(t, err)
	require.NotEqual(t, a.DocumentNamespace, b.DocumentNamespace, "a namespace is one document's own")
}

func TestRelationshipsReferToExistingElements(t *testing.T) {
	data, err := SBOM(image(t))
	require.NoError(t, err)
	d, err := json.Read(bytes.NewReader(data))
	require.NoError(t, err)
	known := map[string]bool{"DOCUMENT": true}
	for _, p := range d.Packages {
		require.Regexp(t, `^[A-Za-z0-9.-]+$`, p.PackageSPDXIdentifier)
		require.False(t, known[string(p.PackageSPDXIdentifier)], p.PackageSPDXIdentifier)
		known[string(p.PackageSPDXIdentifier)] = true
	}
	for _, f := range d.Files {
		require.Regexp(t, `^[A-Za-z0-9.-]+$`, f.FileSPDXIdentifier)
		require.False(t, known[string(f.FileSPDXIdentifier)], f.FileSPDXIdentifier)
		known[string(f.FileSPDXIdentifier)] = true
	}
	for _, r := range d.Relationships {
		require.True(t, known[string(r.RefA.ElementRefID)], r.RefA)
		require.True(t, known[string(r.RefB.ElementRefID)], r.RefB)
	}
}

func TestIdentifiersOfDifferentNamesDiffer(t *testing.T) {
	names := []string{"/a_b", "/a-b", "/a/b", "/a.b", "/a-.b", "/a-5f-b"}
	seen := map[string]string{}
	for _, name := range names {
		id := string(identifier("File", name))
		require.Empty(t, seen[id], "%s and %s", name, seen[id])
		seen[id] = name
	}
}
