package rootfs

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// layer writes a layer: names with a slash at the end are directories, those with
// content "-> x" are links, those with "=> x" hard links.
func layer(t testing.TB, files ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		name, content := f[0], f[1]
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}
		switch {
		case name[len(name)-1] == '/':
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case len(content) > 3 && content[:3] == "=> ":
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeLink, content[3:], 0, ""
		case len(content) > 3 && content[:3] == "-> ":
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, content[3:], 0, ""
		}
		require.NoError(t, w.WriteHeader(h))
		_, err := w.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// opener returns a tarball.Opener for an archive in memory.
func opener(data []byte) tarball.Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

func archive(t testing.TB) []byte {
	t.Helper()
	below := layer(t, [2]string{"etc/", ""}, [2]string{"etc/a", "old"}, [2]string{"etc/b", "b"}, [2]string{"opt/x/y", "y"}, [2]string{"lib", "-> usr/lib"})
	above := layer(t, [2]string{"etc/a", "new"}, [2]string{"etc/.wh.b", ""}, [2]string{"opt/.wh..wh..opq", ""}, [2]string{"opt/z", "z"})
	return layer(t,
		[2]string{"two.tar", string(above)}, [2]string{"one.tar", string(below)},
		[2]string{"c.json", fmt.Sprintf(`{"architecture":"amd64","config":{"User":"0:0","Entrypoint":["/x"],"Labels":{"a":"b"}},`+
			`"rootfs":{"type":"layers","diff_ids":["sha256:%x","sha256:%x"]}}`, sha256.Sum256(below), sha256.Sum256(above))},
		[2]string{"manifest.json", `[{"Config":"c.json","RepoTags":["docker.io/gpuready/x:v1"],"Layers":["one.tar","two.tar"]}]`})
}

func TestLaterLayersOverrideEarlierOnes(t *testing.T) {
	image, err := Read(opener(archive(t)))
	require.NoError(t, err)
	require.Equal(t, []string{"/etc", "/etc/a", "/lib", "/opt/z"}, image.Tree.Paths())
	require.EqualValues(t, 3, image.Tree["/etc/a"].Size)
	require.Equal(t, "usr/lib", image.Tree["/lib"].Link)
	require.Equal(t, []string{"docker.io/gpuready/x:v1"}, image.Names)
	require.Equal(t, "amd64", image.Config.Architecture)
	require.Equal(t, []string{"/x"}, image.Config.Config.Entrypoint)
	require.EqualValues(t, 9*1024, image.Bytes)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, image.ID)
}

func TestInvalidArchiveIsAnError(t *testing.T) {
	_, err := Read(opener(layer(t, [2]string{"index.json", "{}"})))
	require.ErrorContains(t, err, "is it a docker-archive?")
	_, err = Read(opener([]byte("nothing like it, and long enough to be looked at")))
	require.Error(t, err)
}

func TestHardLinksHaveTheirTargetsContent(t *testing.T) {
	tree, err := readTree(bytes.NewReader(layer(t, [2]string{"c", "=> b"}, [2]string{"b", "=> a"}, [2]string{"a", "text"})))
	require.NoError(t, err)
	require.Equal(t, tree["/a"], tree["/c"])
	for _, broken := range [][]byte{layer(t, [2]string{"c", "=> b"}), layer(t, [2]string{"c", "=> b"}, [2]string{"b", "=> c"})} {
		_, err = readTree(bytes.NewReader(broken))
		require.ErrorContains(t, err, "which is missing")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(archive(f))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = Read(opener(data)) })
}

func file(mode fs.FileMode) File { return File{Mode: mode} }

func link(to string) File { return File{Mode: fs.ModeSymlink | 0o777, Link: to} }

func TestLinksAreFollowedWithinTheTree(t *testing.T) {
	tree := Tree{}.With(map[string]File{
		"/lib": link("usr/lib"), "/usr/lib/x/libc.so.6": file(0o755), "/usr/lib/x/loop": link("loop"),
		"/lib64": link("/usr/lib64"), "/usr/lib64/ld.so": link("/lib/x/libc.so.6"), "/out": link("../../../usr/lib/x/libc.so.6"),
	})
	for name, want := range map[string]string{
		"/lib/x/libc.so.6": "/usr/lib/x/libc.so.6", "/lib64/ld.so": "/usr/lib/x/libc.so.6", "/out": "/usr/lib/x/libc.so.6",
		"/lib/x/loop": "", "/lib/y": "", "/": "/",
	} {
		got, ok := tree.Resolve(name)
		require.Equal(t, want, got, name)
		require.Equal(t, want != "", ok, name)
	}
}

func TestDifference(t *testing.T) {
	one := Tree{"/a": {Mode: 0o644, SHA256: "1"}, "/b": file(0o644), "/c": link("a"), "/d": file(0o644)}
	two := Tree{"/a": {Mode: 0o644, SHA256: "2"}, "/b": file(0o600), "/c": link("a"), "/e": file(0o644)}
	require.Empty(t, Difference(one, one))
	require.Equal(t, []string{
		"/a has another content", "/b is -rw-r--r-- of 0:0, -rw------- of 0:0 expected", "/d is not expected", "/e is missing",
	}, Difference(one, two))
}

// base has glibc 2.36 and a program that it satisfies.
func base() Tree {
	return Tree{}.With(map[string]File{
		"/lib": link("usr/lib"), "/lib64": link("usr/lib64"), "/tmp": file(fs.ModeDir | fs.ModeSticky | 0o777),
		"/usr/lib64/ld-linux-x86-64.so.2":                link("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
		"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": file(0o755),
		"/usr/lib/x86_64-linux-gnu/libc.so.6": {Mode: 0o755, Object: &Object{
			Machine: elf.EM_X86_64, Defines: []string{"libc.so.6", "GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.36", "GLIBC_PRIVATE"}}},
		"/usr/bin/program": {Mode: 0o755, Object: &Object{
			Machine: elf.EM_X86_64, Interp: "/lib64/ld-linux-x86-64.so.2", Needed: []string{"libc.so.6"},
			Wants: []Version{{Library: "libc.so.6", Name: "GLIBC_2.34", Symbol: "__libc_start_main"}}}},
	})
}

func TestCheckFindsForbiddenFiles(t *testing.T) {
	program := "/usr/bin/program"
	change := func(change func(o *Object)) func(Tree) {
		return func(t Tree) { change(t[program].Object) }
	}
	for name, c := range map[string]struct {
		change func(Tree)
		want   string
	}{
		"nothing":         {func(Tree) {}, ""},
		"a shell":         {func(t Tree) { t["/usr/bin/dash"] = file(0o755) }, "/usr/bin/dash is a shell;"},
		"a shell's name":  {func(t Tree) { t["/usr/bin/sh"] = link("toolbox") }, "/usr/bin/sh is a shell's name;"},
		"setuid":          {func(t Tree) { t["/usr/bin/su"] = file(fs.ModeSetuid | 0o755) }, "/usr/bin/su is urwxr-xr-x and would give rights"},
		"setgid":          {func(t Tree) { t["/usr/bin/wall"] = file(fs.ModeSetgid | 0o755) }, "would give rights"},
		"a device":        {func(t Tree) { t["/dev/null"] = file(fs.ModeDevice | fs.ModeCharDevice | 0o600) }, "/dev/null is"},
		"for anyone":      {func(t Tree) { t["/etc/x"] = file(0o666) }, "for anyone to write"},
		"a folder":        {func(t Tree) { t["/x"] = file(fs.ModeDir | 0o777) }, "for anyone to write"},
		"no loader":       {func(t Tree) { delete(t, "/lib64") }, "wants the loader /lib64/ld-linux-x86-64.so.2, which the base has not"},
		"no library":      {change(func(o *Object) { o.Needed = append(o.Needed, "libssl.so.3") }), "wants libssl.so.3, which the base has not"},
		"another machine": {change(func(o *Object) { o.Machine = elf.EM_AARCH64 }), "is for EM_AARCH64, not for amd64"},
		"a newer glibc": {
			change(func(o *Object) { o.Wants = []Version{{"libc.so.6", "GLIBC_2.38", "__isoc23_strtol"}} }),
			"wants GLIBC_2.38 of libc.so.6 (__isoc23_strtol), the base's goes up to GLIBC_2.36; build where the base is from",
		},
		"the race detector": {
			change(func(o *Object) {
				o.Go = &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "-race", Value: "true"}}}
			}),
			"was built with the race detector",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := base()
			c.change(tree)
			problems := Check(tree, "amd64", []string{program})
			if c.want == "" {
				require.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1)
			require.ErrorContains(t, problems[0], c.want)
		})
	}
}

func TestReadObject(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	o, err := ReadObject(self)
	require.NoError(t, err)
	require.Equal(t, machines[runtime.GOARCH], o.Machine)
	require.NotNil(t, o.Go)
	require.Equal(t, runtime.GOARCH, o.Setting("GOARCH"))
	if o.Interp != "" { // a test that is linked with C has all of it
		require.Contains(t, o.Needed, "libc.so.6")
		require.NotEmpty(t, o.Wants)
		for _, v := range o.Wants {
			require.NotEmpty(t, v.Name)
			require.NotEmpty(t, v.Library)
		}
	}
	none, err := ReadObject([]byte("text"))
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = Regular("/usr/bin/x", 0o755, self[:40])
	require.ErrorContains(t, err, "/usr/bin/x: cannot be read as ELF")
}
