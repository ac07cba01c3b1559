package driver

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestModulesAreBuiltWhereTheImageHasNone uses a stand-in for make that copies modules compiled
// before. TestModulesAreCompiled covers compiling.
func TestModulesAreBuiltWhereTheImageHasNone(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	n := newBuildNode(t, k)
	built := []string{"--sources", "/sources", "--build-cache", "/var/lib/cache", "--build-dir", "/var/lib/work"}
	calls := func() int { return strings.Count(n.Run(t.Context(), "cat", "/calls").Stdout, "called") }

	n.refuses("KernelMismatch", "the driver's image has no modules for kernel "+k.Release+", which this node runs, but for 5.14.0-other")
	n.MustRun(t.Context(), "touch", "/broken")
	n.refuses("BuildFailed", "nvidia/nv.c:7:", built...)
	require.Empty(t, n.modules())
	n.MustRun(t.Context(), "rm", "/broken", "/calls")

	require.Contains(t, n.loads(built...).Stderr, "modules are built")
	require.Equal(t, 1, calls())
	require.Len(t, n.modules(), 3)
	r := n.loads(built...)
	require.Contains(t, r.Stderr, keptHere)
	require.Contains(t, r.Stderr, "adopted=true loaded=0")
	n.unloads()
	n.MustRun(t.Context(), "rm", "-r", "/var/lib/work")
	require.Contains(t, n.loads(built...).Stderr, keptHere)
	require.Equal(t, 1, calls(), "nothing is compiled twice")
	n.unloads()
}

const keptHere = "modules are taken from those that this node keeps"

// TestABuildIsPulledByTheNextNode simulates two nodes on one machine, which differ in the files they
// keep. The second one has neither make nor headers.
func TestABuildIsPulledByTheNextNode(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	n := newBuildNode(t, k, vm.Files{"/usr/bin/registry": buildStandin(t)})
	ctx := t.Context()
	n.MustRun(ctx, "ip", "link", "set", "lo", "up")
	serving := n.Start(ctx, vm.Command{Args: []string{"registry"}})
	n.until(serving, "serving")

	const repository = "127.0.0.1:5000/driver"
	flags := []string{
		"--driver-version", version, "--build-cache", "/var/lib/cache", "--build-dir", "/var/lib/work",
		"--prebuild-repository", repository, "--os-tag", "debian12", "--image", repository + ":base", "--prebuild-insecure", "127.0.0.1:5000",
	}
	from := append([]string{"--sources", "/sources"}, flags...)
	nextNode := func() { n.MustRun(ctx, "rm", "-rf", "/var/lib/cache", "/var/lib/work") }
	calls := func() int { return strings.Count(n.MustRun(ctx, "cat", "/calls"), "called") }

	p := n.run(from...)
	n.until(p, "what was built is in the registry")
	r, _ := p.Output(ctx)
	require.Contains(t, r.Stderr, "nobody has built the modules yet")
	n.ends(p)
	require.Equal(t, 1, calls())
	n.MustRun(ctx, "rm", "/usr/local/bin/make", "/usr/src/linux-headers-"+k.Release+"/Makefile")

	nextNode()
	require.Contains(t, n.loads(from...).Stderr, "modules are pulled")
	require.Len(t, n.modules(), 3)
	n.unloads()
	nextNode()
	require.Contains(t, n.loads(flags...).Stderr, "modules are pulled", "without sources, too")
	n.unloads()

	// The node has a certificate, but the modules are not signed with it.
	nextNode()
	require.NoError(t, n.WriteFile(ctx, "/certificate.der", newCertificate(t), 0o644))
	n.refuses("SignatureRejected", "it is not signed", append(flags, "--sign-certificate", "/certificate.der")...)

	// Its registry does not respond.
	n.kill(serving)
	nextNode()
	n.refuses("SourceUnreachable", "connection refused", flags...)
	n.refuses("BuildFailed", "headers", from...)
	require.Equal(t, 1, calls())
}

// newBuildNode boots a machine whose image has modules for another kernel. It has the kernel's headers
// and stand-ins for the compiler and make.
func newBuildNode(t testing.TB, k *vm.Kernel, more ...vm.Files) *node {
	t.Helper()
	headers := "/usr/src/linux-headers-" + k.Release
	text := func(s string) vm.File { return vm.File{Data: []byte(s)} }
	script := func(s string) vm.File { return vm.File{Data: []byte("#!/bin/sh\n" + s), Mode: 0o755} }
	return boot(t, vm.Config{Kernel: k, Files: vm.Merge(append(more,
		k.ModuleTree(t, []string{"ecc"}, nil),
		image("/driver", "5.14.0-other", vm.BuildStubs(t, k, version)),
		vm.BuildStubs(t, k, version).Below("/made"),
		vm.Files{
			"/sources/kernel-open/Kbuild":               text("obj-m += nvidia.o\n"),
			headers + "/Makefile":                       text("# a kernel's\n"),
			headers + "/.config":                        text("CONFIG_CC_VERSION_TEXT=\"gcc-12 (a stand-in)\"\n"),
			headers + "/Module.symvers":                 text(""),
			headers + "/include/generated/autoconf.h":   text(""),
			headers + "/include/generated/utsrelease.h": text("#define UTS_RELEASE \"" + k.Release + "\"\n"),
			"/usr/local/bin/gcc-12":                     script("echo 'gcc-12 (a stand-in)'\n"),
			"/usr/local/bin/make": script(`echo called >>/calls
for a in "$@"; do case "$a" in M=*) to=${a#M=} ;; esac; done
[ ! -e /broken ] || { echo "$to/nvidia/nv.c:7:3: error: too few arguments to function 'pci_resize_resource'" >&2; exit 2; }
cp /made/*.ko "$to"
`),
		},
	)...)})
}

// TestTheDriverToolkitBuildsForTheDriverContainer runs both containers of the pod, with the commands of
// NVIDIA's images, on one machine.
func TestTheDriverToolkitBuildsForTheDriverContainer(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	n := newBuildNode(t, k)
	ctx := t.Context()
	n.MustRun(ctx, "mkdir", "-p", toolkit.Dir)
	env := []string{"DRIVER_SOURCES=/sources", "BUILD_DIR=/var/lib/work", "DRIVER_VERSION=" + version}
	start := func() *vm.Process {
		return n.Start(ctx, vm.Command{Args: []string{"gpu-driver", "nv-ctr-run-with-dtk", "--listen=", "--without-gpu"}, Env: env})
	}
	p := start()
	for n.Run(ctx, "test", "-e", toolkit.Dir+"/dir_prepared").Code != 0 {
		r, exited := p.Output(ctx)
		require.False(t, exited, "%s", r)
	}
	require.EqualValues(t, "DriverStarting", n.state().Reason)
	side := n.Start(ctx, vm.Command{Args: []string{toolkit.Dir + "/ocp_dtk_entrypoint", "dtk-build-driver"}})
	n.until(p, "msg=ready")
	require.Len(t, n.modules(), 3)
	n.MustRun(ctx, "test", "-e", toolkit.Dir+"/driver_built")
	n.ends(p)

	// Started again, the side-car has nothing to build.
	p = start()
	n.until(p, "msg=ready")
	require.Equal(t, 1, strings.Count(n.MustRun(ctx, "cat", "/calls"), "called"))
	n.ends(p)

	// A failed build ends the wait at once, with the compiler's error.
	n.MustRun(ctx, "touch", "/broken", "/sources/kernel-open/another")
	r := start().Wait(ctx, gone)
	require.Equal(t, 3, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "BuildFailed: in the Driver Toolkit: ")
	require.Contains(t, r.Stderr, "nvidia/nv.c:7: too few arguments to function")
	t.Log(lastLine(r.Stderr))
	n.ends(side)
	env = append(env, "RHCOS_IMAGE_MISSING=true", "RHCOS_VERSION=418.94.202501")
	r = start().Wait(ctx, gone)
	require.Contains(t, r.Stderr, "ToolkitBroken: OpenShift has no Driver Toolkit image for RHCOS 418.94.202501")
}

// newCertificate returns a new certificate, whose key has signed nothing.
func newCertificate(t testing.TB) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "signs modules"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return string(der)
}
