package build

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestFindHeadersInDistributionFolders(t *testing.T) {
	const release = "6.1.0-1"
	for name, c := range map[string]struct {
		files          map[string]string
		links          map[string]string
		source, output string
	}{
		"RHEL": {
			files:  map[string]string{"usr/src/kernels/6.1.0-1/Makefile": "VERSION = 6\n"},
			source: "usr/src/kernels/6.1.0-1", output: "usr/src/kernels/6.1.0-1",
		},
		"Debian": {
			files:  map[string]string{"usr/src/linux-headers-6.1.0-1/Makefile": "include /usr/src/linux-headers-6.1.0-1-common/Makefile\n"},
			source: "usr/src/linux-headers-6.1.0-1-common", output: "usr/src/linux-headers-6.1.0-1",
		},
		"Ubuntu": {
			files:  map[string]string{"usr/src/linux-headers-6.1.0-1/Makefile": "VERSION = 6\ninclude $(srctree)/scripts/Kbuild.include\n"},
			source: "usr/src/linux-headers-6.1.0-1", output: "usr/src/linux-headers-6.1.0-1",
		},
		"SUSE": {
			files:  map[string]string{"usr/src/linux-obj/x86_64/default/Makefile": "# made by make\ninclude ../../../linux-6.1/Makefile\n"},
			links:  map[string]string{"lib/modules/6.1.0-1/build": "../../../usr/src/linux-obj/x86_64/default"},
			source: "usr/src/linux-6.1", output: "usr/src/linux-obj/x86_64/default",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(newFolder(t, c.files))
			require.NoError(t, err)
			for at, target := range c.links {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, at)), 0o755))
				require.NoError(t, os.Symlink(target, filepath.Join(root, at)))
			}
			h, err := FindHeaders(root, release)
			require.NoError(t, err)
			require.Equal(t, Headers{filepath.Join(root, c.source), filepath.Join(root, c.output)}, h)
		})
	}
	_, err := FindHeaders(t.TempDir(), release)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "install kernel-devel-6.1.0-1 or linux-headers-6.1.0-1")
}

// newFolder returns a new folder with files.
func newFolder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	return dir
}

// headers returns a folder of headers with the files that are checked.
func headers(t testing.TB) Headers {
	t.Helper()
	dir := newFolder(t, map[string]string{
		".config":                      "CONFIG_CC_VERSION_TEXT=\"no-such-cc 12\"\nCONFIG_CC_IS_GCC=y\n",
		"Module.symvers":               "",
		"include/generated/autoconf.h": "",
		releaseFile:                    "#define UTS_RELEASE \"6.1.0-1\"\n",
	})
	return Headers{Source: dir, Output: dir}
}

func TestMissingCompilerIsReported(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r := Request{Source: t.TempDir(), Headers: headers(t), Release: "6.1.0-1", Work: t.TempDir()}
	_, err := Compile(t.Context(), r)
	e, ok := err.(*kernel.Error) //nolint:errorlint // it is no wrapped one
	require.True(t, ok)
	require.Equal(t, ReasonBuildFailed, e.Reason)
	require.ErrorContains(t, err, `build the driver's modules for kernel 6.1.0-1: there is no compiler; the kernel was built with "no-such-cc 12"`)
	_, err = Digest(t.Context(), r)
	require.ErrorContains(t, err, "there is no compiler")
}

func TestDigestDependsOnEverything(t *testing.T) {
	r := Request{
		Source: newFolder(t, map[string]string{"Kbuild": "obj-m += a.o\n"}), Headers: headers(t), Release: "6.1.0-1",
		Version: "580.95.05", Kind: "open", Modules: []string{"nvidia"}, Variables: map[string]string{"A": "1"},
	}
	seen := map[string]string{}
	add := func(what string) {
		d, err := Digest(t.Context(), r)
		require.NoError(t, err)
		require.NotContains(t, seen, d, "%s and %s", what, seen[d])
		seen[d] = what
	}
	add("the first")
	r.Release = "6.1.0-2"
	add("release")
	r.Version = "580.95.06"
	add("version")
	r.Kind = "proprietary"
	add("kind")
	r.Modules = append(r.Modules, "nvidia-uvm")
	add("modules")
	r.Variables["A"] = "2"
	add("variables")
	require.NoError(t, os.WriteFile(filepath.Join(r.Headers.Output, symbolsFile), []byte("0x1\tf\tvmlinux\tEXPORT_SYMBOL\n"), 0o644))
	add("symbols")
	require.NoError(t, os.WriteFile(filepath.Join(r.Headers.Output, configFile), []byte("CONFIG_SMP=y\n"), 0o644))
	add("configuration")
	require.NoError(t, os.WriteFile(filepath.Join(r.Source, "a.c"), nil, 0o644))
	add("a source")
	r.SourceDigest = "abc"
	add("the digest of the sources")
}
