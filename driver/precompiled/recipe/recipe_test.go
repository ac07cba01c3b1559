package recipe

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
)

// knownSettings returns settings that are complete on a machine of either architecture.
func knownSettings(os string, change func(*Settings)) *Settings {
	s := &Settings{OS: os, DriverVersion: "580.95.05", Source: "driver.run", Kernels: []string{"6.1.0-50-amd64"}, ContainerTool: "podman", ImageRegistry: "registry.example.com/gpu", ImageName: "driver"}
	if change != nil {
		change(s)
	}
	return s
}

func TestTagOfTheOperatingSystem(t *testing.T) {
	openshift := func(version, rhel string) func(*Settings) {
		return func(s *Settings) {
			s.OpenShiftVersion, s.RHELVersion, s.DriverToolkitImages = version, rhel, []string{"quay.io/dtk"}
		}
	}
	for _, c := range []struct {
		os     string
		change func(*Settings)
		want   string
	}{
		{"debian12", nil, "debian12"},
		{"ubuntu24.04", nil, "ubuntu24.04"},
		{"rhel9", func(s *Settings) { s.RHELVersion = "9.6" }, "rhel9.6"},
		{"rhcos4", openshift("4.12.13", "8.6"), "rhcos4.12"},
		{"rhcos4", openshift("4.19.2", "9.6"), "rhel9.6"},
		{"sles15", func(s *Settings) { s.OSTag = "sles15.6" }, "sles15.6"},
	} {
		s := knownSettings(c.os, c.change)
		require.NoError(t, s.Complete())
		require.Equal(t, c.want, s.OSTag)
	}
}

func TestInvalidVariableIsReported(t *testing.T) {
	other := map[string]string{"x86_64": "aarch64", "aarch64": "x86_64"}[machineArch()]
	for want, change := range map[string]func(*Settings){
		`DRIVER_VERSION is "580"`:                    func(s *Settings) { s.DriverVersion = "580" },
		`DRIVER_TYPE is "vgpu"`:                      func(s *Settings) { s.DriverType = "vgpu" },
		`KERNEL_MODULE_TYPE`:                         func(s *Settings) { s.Kind = "closed" },
		`DRIVER_SHA256 is not set`:                   func(s *Settings) { s.Source = "" },
		`DRIVER_SHA256 is not a SHA-256`:             func(s *Settings) { s.SHA256 = "abc" },
		`is neither a file, a folder nor an address`: func(s *Settings) { s.Source, s.SHA256 = "ftp://x/y", "" },
		`set one`:                 func(s *Settings) { s.Packages = []string{"nvidia-driver"} },
		`TARGET_ARCH is ` + other: func(s *Settings) { s.TargetArch = other },
		`KERNEL_VERSION "../x" is not the release`:                func(s *Settings) { s.Kernels = []string{"../x"} },
		`KERNEL_VERSION "6.1 RUN evil" is not the release`:        func(s *Settings) { s.Kernels = []string{"6.1\nRUN evil"} },
		`DRIVER_MODULES: "nvidia\"," is not the name`:             func(s *Settings) { s.Modules = []string{`nvidia",`} },
		`DRIVER_PACKAGES: "$(evil)" is not the name`:              func(s *Settings) { s.Source, s.Packages = "", []string{"$(evil)"} },
		`DRIVER_SHA256 is for an installer`:                       func(s *Settings) { s.Source, s.SHA256 = os.TempDir(), strings.Repeat("0", 64) },
		`KERNEL_VERSION is not set`:                               func(s *Settings) { s.Kernels = nil },
		`and TARGET_ARCH is ` + machineArch():                     func(s *Settings) { s.Kernels = []string{"5.14.0-1.el9." + other} },
		other + `+64k is of ` + other:                             func(s *Settings) { s.Kernels = []string{"5.14.0-1.el9." + other + "+64k"} },
		`IMAGE_REGISTRY, IMAGE_NAME: "registry.example/GPU/drive`: func(s *Settings) { s.ImageRegistry = "registry.example/GPU" },
		`RHEL_MAJOR is 8, and RHEL_VERSION is 9.4`:                func(s *Settings) { s.RHELMajor, s.RHELVersion = "8", "9.4" },
		`names 2 images for 1 kernels`:                            func(s *Settings) { s.DriverToolkitImages = []string{"a", "b"} },
		`CONTAINER_TOOL is "kaniko"`:                              func(s *Settings) { s.ContainerTool = "kaniko" },
		`PULL_SECRET_FILE: stat /nowhere`:                         func(s *Settings) { s.PullSecretFile = "/nowhere" },
		`IMAGE_REGISTRY, IMAGE_NAME: "a:b:c/driver" is not a rep`: func(s *Settings) { s.ImageRegistry = "a:b:c" },
		`can be no tag of an image`:                               func(s *Settings) { s.OSTag = "debian 12" },
		`SIGN_KEY_FILE needs SIGN_CERTIFICATE_FILE`:               func(s *Settings) { s.SignKey = "key" },
		`there is no recipe for "plan9"`:                          func(s *Settings) { s.OS = "plan9" },
		`DRIVER_TOOLKIT_IMAGE is not set`:                         func(s *Settings) { s.OS, s.OSTag = "rhcos4", "rhcos4.12" },
		`OS_TAG is not set`:                                       func(s *Settings) { s.OS = "rhel9" },
	} {
		require.ErrorContains(t, knownSettings("debian12", change).Complete(), want)
	}
	err := (&Settings{OS: "rhcos4", ContainerTool: "podman"}).Complete()
	for _, name := range []string{"DRIVER_VERSION", "DRIVER_SHA256", "DRIVER_TOOLKIT_IMAGE", "KERNEL_VERSION", "OS_TAG"} {
		require.ErrorContains(t, err, name, "all of them at once")
	}
}

func TestInstallerIsDownloadedOnceAndVerified(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/driver.run" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "the installer")
	}))
	defer server.Close()
	s := knownSettings("debian12", func(s *Settings) {
		s.Source, s.SHA256, s.Out = server.URL+"/driver.run", fmt.Sprintf("%x", sha256.Sum256([]byte("the installer"))), t.TempDir()
	})
	require.NoError(t, s.Complete())
	for range 2 {
		file, err := s.downloadInstaller(t.Context())
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "the installer", string(text))
	}
	require.Equal(t, 1, asked)
	s.SHA256 = fmt.Sprintf("%x", sha256.Sum256(nil))
	_, err := s.downloadInstaller(t.Context())
	require.ErrorContains(t, err, "and DRIVER_SHA256 is "+s.SHA256)
	s.Source = server.URL + "/other.run"
	_, err = s.downloadInstaller(t.Context())
	require.ErrorContains(t, err, "404 Not Found; set DRIVER_SOURCE to a file")
	left, err := os.ReadDir(filepath.Join(s.Out, "downloads"))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half-fetched stays")
}

// Sources are found where an installer, Debian's packages and others have them.
func TestSourcesOfPackages(t *testing.T) {
	write := func(dir, name string, text []byte) {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, text, 0o644))
	}
	archive := filepath.Join(t.TempDir(), "archive")
	f, err := os.Create(archive)
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "modules/nvidia-open-kernel/Kbuild", Typeflag: tar.TypeReg, Mode: 0o644}))
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	debian, err := os.ReadFile(archive)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		file string
		text []byte
		kind string
	}{
		"Debian's": {"usr/src/nvidia-open-kernel.tar.xz", debian, "open"},
		"DKMS":     {"usr/src/nvidia-580.95.05/Kbuild", nil, "proprietary"},
		"Ubuntu's": {"usr/src/nvidia-580.95.05/Kbuild", nil, "open"},
		"NVIDIA's": {"kernel-open/Kbuild", nil, "open"},
	} {
		dir := t.TempDir()
		write(dir, c.file, c.text)
		licence := map[string]string{"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}[c.kind]
		write(dir, filepath.Join(filepath.Dir(c.file), "nvidia/nv.c"), []byte("MODULE_LICENSE(\""+licence+"\");\n"))
		if name == "NVIDIA's" {
			write(dir, ".manifest", []byte("NVIDIA\n580.95.05\n"))
		}
		s := knownSettings("debian12", func(s *Settings) { s.Source = dir })
		require.NoError(t, s.Complete())
		d, err := s.findDriver(t.Context(), s.Kernels, t.TempDir())
		require.NoError(t, err, name)
		require.Len(t, d.sources, 1, name)
		require.Equal(t, c.kind, string(d.sources[0].kind), name)
		require.FileExists(t, filepath.Join(d.sources[0].dir, "Kbuild"))
		s.Kind = map[string]string{"open": "proprietary", "proprietary": "open"}[c.kind]
		_, err = s.findDriver(t.Context(), s.Kernels, t.TempDir())
		require.ErrorContains(t, err, "has no sources of "+s.Kind+" modules", name)
	}
	s := knownSettings("debian12", func(s *Settings) { s.Source = t.TempDir() })
	require.NoError(t, s.Complete())
	_, err = s.findDriver(t.Context(), s.Kernels, t.TempDir())
	require.ErrorContains(t, err, "has neither .manifest, as NVIDIA's installer unpacks it, nor usr/src/nvidia*")
}

// A node chooses the kind by its GPUs. From branch 590 on, no GPU needs the proprietary one.
func TestAutoCompilesEachKindThatSomeGPUNeeds(t *testing.T) {
	both := map[kernel.Kind]string{kernel.OpenKind: t.TempDir(), kernel.Proprietary: t.TempDir()}
	for _, c := range []struct {
		version, kind string
		have          map[kernel.Kind]string
		want          []source
	}{
		{"580.95.05", "auto", both, []source{{kernel.OpenKind, both[kernel.OpenKind]}, {kernel.Proprietary, both[kernel.Proprietary]}}},
		{"535.309.01", "auto", both, []source{{kernel.OpenKind, both[kernel.OpenKind]}, {kernel.Proprietary, both[kernel.Proprietary]}}},
		{"590.48.01", "auto", both, []source{{kernel.OpenKind, both[kernel.OpenKind]}}},
		{"590.48.01", "proprietary", both, []source{{kernel.Proprietary, both[kernel.Proprietary]}}},
		{"580.95.05", "open", both, []source{{kernel.OpenKind, both[kernel.OpenKind]}}},
		{"470.256.02", "auto", map[kernel.Kind]string{kernel.Proprietary: both[kernel.Proprietary]}, []source{{kernel.Proprietary, both[kernel.Proprietary]}}},
	} {
		s := knownSettings("debian12", func(s *Settings) { s.DriverVersion, s.Kind = c.version, c.kind })
		got, err := s.chooseSources(c.have)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.version)
	}
}

// Both kinds of modules for a kernel are in one image, each in a layer that its label names.
func TestAnImageHasBothKinds(t *testing.T) {
	s := knownSettings("debian12", func(s *Settings) { s.Out = t.TempDir() })
	require.NoError(t, s.Complete())
	var all []compiled
	for _, release := range s.Kernels {
		for _, kind := range []kernel.Kind{kernel.OpenKind, kernel.Proprietary} {
			c := compiled{source: source{kind: kind}, release: release, halves: filepath.Join(t.TempDir(), release)}
			require.NoError(t, os.MkdirAll(c.halvesDir(), 0o755))
			require.NoError(t, link.Halves{Kind: string(kind)}.Write(c.halvesDir()))
			all = append(all, c)
		}
	}
	made, err := s.writeImages(empty.Image, s.Kernels, all)
	require.NoError(t, err)
	require.Len(t, made, len(s.Kernels))
	index, err := layout.ImageIndexFromPath(s.Folder())
	require.NoError(t, err)
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	for n, m := range manifest.Manifests {
		i, err := index.Image(m.Digest)
		require.NoError(t, err)
		modules, err := image.ListModules(i)
		require.NoError(t, err)
		require.Len(t, modules, 2)
		require.Equal(t, []string{s.Kernels[n], "open", s.Kernels[n], "proprietary"}, []string{modules[0].Kernel, modules[0].Kind, modules[1].Kernel, modules[1].Kind})
	}
}

// The C library of the base lies beside the programs of a driver.
func TestCLibraryIsCopiedFromTheBase(t *testing.T) {
	s := knownSettings("debian12", nil)
	require.NoError(t, s.Complete())
	base, to := t.TempDir(), t.TempDir()
	triplet := s.TargetArch + "-linux-gnu"
	loader := filepath.Base(loaders[s.TargetArch])
	for _, name := range []string{"libc.so.6", "libm.so.6", loader, "libssl.so.3"} {
		at := filepath.Join(base, "usr/lib", triplet, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(name), 0o755))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(base, "usr/lib", triplet, "libdl.so.2")))
	require.NoError(t, s.copyGlibc(base, to))
	require.FileExists(t, filepath.Join(to, loaders[s.TargetArch]))
	require.FileExists(t, filepath.Join(to, s.layout().Libraries, "libc.so.6"))
	require.NoFileExists(t, filepath.Join(to, s.layout().Libraries, "libssl.so.3"))
	require.NoFileExists(t, filepath.Join(to, s.layout().Libraries, "libdl.so.2"))
}

// Each operating system has a Makefile and a stage that compiles for it.
func TestEachOperatingSystemHasAFolder(t *testing.T) {
	for os, o := range systems {
		require.FileExists(t, filepath.Join("..", os, "Makefile"))
		require.FileExists(t, filepath.Join("..", string(o.family)+".containerfile"))
	}
	for want, s := range map[string]Settings{
		"registry.access.redhat.com/ubi9/ubi:9.6 9.6": {OS: "rhel9"},
		"registry.access.redhat.com/ubi8/ubi:8.6 8.6": {OS: "rhel8", RHELVersion: "8.6"},
		"dtk2 9.6":                        {OS: "rhel9", DriverToolkitImages: []string{"dtk1", "dtk2"}},
		"dtk2 ":                           {OS: "rhcos4", DriverToolkitImages: []string{"dtk1", "dtk2"}},
		"my-image ":                       {OS: "debian12", BuilderImage: "my-image"},
		"docker.io/library/ubuntu:24.04 ": {OS: "ubuntu24.04"},
	} {
		builder, rhel := s.builderImage(1)
		require.Equal(t, want, builder+" "+rhel)
	}
}

// Two runs do not write to the same folder, and leftovers of a killed run are removed.
func TestOneRunAtATime(t *testing.T) {
	s := knownSettings("debian12", func(s *Settings) { s.Out, s.BaseImage = t.TempDir(), filepath.Join(t.TempDir(), "none.tar") })
	require.NoError(t, s.Complete())
	require.NoError(t, os.MkdirAll(filepath.Join(s.Out, "work/kernel-0"), 0o755))
	unlock, err := s.lock()
	require.NoError(t, err)
	_, err = s.Build(t.Context())
	require.ErrorContains(t, err, "another run builds images in "+s.Out)
	require.DirExists(t, filepath.Join(s.Out, "work/kernel-0"))
	unlock()
	_, err = s.Build(t.Context())
	require.ErrorContains(t, err, "BASE_IMAGE: ")
	require.NoDirExists(t, filepath.Join(s.Out, "work"))
}

// The objects of the driver that halves name are files of its sources with the linked bytes. No
// other file of this machine gets into an image.
func TestObjectsAreCopiedFromTheSources(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nv-kernel.o_binary"), []byte("object"), 0o644))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "link.o_binary")))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close() //nolint:errcheck // it is only read
	for _, c := range []struct{ name, text, err string }{
		{"nv-kernel.o_binary", "object", ""},
		{"nv-kernel.o_binary", "another", "is not the object from which the modules were linked"},
		{"link.o_binary", "secret", "is not a file of the driver's sources"},
		{"../key", "secret", "path escapes from parent"},
	} {
		o := link.Object{Common: c.name, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(c.text)))}
		err := copyObject(root, o, filepath.Join(t.TempDir(), "to"))
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
}

// The packages that a recipe installs exist: each was published for that release of a kernel.
func TestHeadersArePackagesThatExist(t *testing.T) {
	data, err := os.ReadFile("testdata/kernels.yaml")
	require.NoError(t, err)
	var kernels []struct{ System, Release, Package, Source string }
	require.NoError(t, yaml.UnmarshalStrict(data, &kernels))
	require.NotEmpty(t, kernels)
	for _, k := range kernels {
		require.NotEmpty(t, k.Source)
		o, known := systems[k.System]
		require.True(t, known, k.System)
		require.Equal(t, k.Package, nameHeaders(o.family, k.Release), k.System)
		require.True(t, releasePattern.MatchString(k.Release), k.Release)
		arch := machineArch()
		if strings.Contains(k.Release, "aarch64") {
			arch = "aarch64"
		} else if strings.Contains(k.Release, "x86_64") {
			arch = "x86_64"
		}
		s := knownSettings(k.System, func(s *Settings) { s.TargetArch, s.OSTag = arch, "x1" })
		require.NoError(t, s.checkKernel(k.Release), k.Release)
	}
	s := knownSettings("rhel9", func(s *Settings) { s.TargetArch, s.OSTag = "x86_64", "rhel9.4" })
	require.ErrorContains(t, s.checkKernel("5.14.0-427.13.1.el9_4.aarch64+64k"), "is of aarch64, and TARGET_ARCH is x86_64")
}

func TestEachSystemHasItsFolderAndContainerfile(t *testing.T) {
	for name, o := range systems {
		makefile, err := os.ReadFile(filepath.Join("..", name, "Makefile"))
		require.NoError(t, err)
		require.Equal(t, "OS := "+name+"\ninclude ../recipe.mk\n", string(makefile))
		text, err := os.ReadFile(filepath.Join("..", string(o.family)+".containerfile"))
		require.NoError(t, err)
		require.Equal(t, o.family != rhcos, strings.Contains(string(text), "${HEADERS_PACKAGES}"), name)
	}
	folders, err := filepath.Glob("../*/Makefile")
	require.NoError(t, err)
	require.Len(t, folders, len(systems))
}
