package operator

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// Versions of gpuready's own driver with SIMULATED modules: Debian's compiler builds them
// for two of Debian's kernels. They are loaded into a kernel that is a folder of the node
// (simkernel).
const (
	ownVersion    = "580.95.05"
	nextVersion   = "580.105.08"
	brokenVersion = "590.10"
	scriptVersion = "575.57.08" // whose modules a script builds, see sideCarOfNVIDIA
)

// osTags maps versions of RHCOS to their image tags.
var osTags = map[string]string{rhcos412: "rhcos4.12", rhcos418: "rhcos4.18"}

// built is a cluster whose nodes report Debian's kernels and OpenShift.
type built struct {
	variants
	kernels map[string]*vm.Kernel // by the version of RHCOS that has it
}

// TestOwnDriver builds kernel modules in the Driver Toolkit, once for each kernel, and loads
// them on nodes.
func TestOwnDriver(t *testing.T) {
	t.Parallel()
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	kernels := map[string]*vm.Kernel{}
	for version, series := range map[string]vm.Series{rhcos412: vm.Linux61, rhcos418: vm.Linux612} {
		kernels[version], err = vm.EnsureKernel(t.Context(), cache, series, t.Output())
		require.NoError(t, err)
	}
	s := up(t, cluster.Config{Nodes: 2})
	b := &built{variants{suite: s, hub: s.startRegistry(t)}, kernels}
	b.prepare(t, cache)
	s.play(t,
		scenario{"TwoKernelsAtOnce", b.twoKernels},
		scenario{"BuiltOnce", b.builtOnce},
		scenario{"Prebuilt", b.prebuilt},
		scenario{"FallbackAndBack", b.fallbackAndBack},
		scenario{"SideCarOfNVIDIA", b.sideCarOfNVIDIA},
		scenario{"BuildsFail", b.buildsFail},
		scenario{"SharedFolderFull", b.sharedFolderFull},
		scenario{"SideCarKilled", b.sideCarKilled},
	)
}

// prepare fills the registry and installs the operator.
func (b *built) prepare(t *testing.T, cache string) {
	t.Helper()
	b.preparePCI(t)
	for _, n := range b.Nodes {
		b.plugGPU(t, n.Name)
	}
	source := driverSources(t, ownVersion)
	b.pushDriver(t, ownVersion, source)
	b.Kubectl(t, "create", "namespace", "openshift")
	b.Kubectl(t, "apply", "-f", "testdata/openshift.yaml")
	b.served(t, "crd/imagestreams.image.openshift.io", "crd/securitycontextconstraints.security.openshift.io")
	b.ApplyText(t, givesUsers)
	compiler, err := binaries.EnsureCompiler(t.Context(), cache, t.Output())
	require.NoError(t, err)
	extra := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(extra, "tmp"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(extra, "tmp"), 0o777|fs.ModeSticky))
	layers := []gcr.Layer{folderLayer(t, compiler, ""), folderLayer(t, extra, ""), layerOf(t, nil, map[string]string{"usr/bin/awk": "mawk"})}
	for _, k := range b.kernels {
		layers = append(layers, folderLayer(t, filepath.Join(k.Root(), "usr"), "usr"))
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	require.NoError(t, err)
	b.imageStream(t, b.hub.pushImage(t, "openshift/driver-toolkit:debian", image), rhcos412, rhcos418)
	b.helm(t, "install", "gpuready", chart(), "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "3m",
		"--set", "nfd.enabled=false", "--set", "clusterPolicy.create=false", "--set", "operator.insecureRegistries={"+b.hub.Host+"}")
}

// givesUsers assigns users as OpenShift does to pods that name none.
const givesUsers = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: restricted-v2}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
  - name: without-a-user
    expression: "object.spec.?securityContext.?runAsNonRoot.orValue(false) && !has(object.spec.securityContext.runAsUser)"
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{spec: Object.spec{securityContext: Object.spec.securityContext{runAsUser: 1000650000, fsGroup: 1000650000}}}"
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: restricted-v2}
spec: {policyName: restricted-v2}
`

// driverSources returns a driver's sources as its installer unpacks them.
func driverSources(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kernel-open")
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../simulator/kernel")))
	change(t, filepath.Join(dir, "Kbuild"), "DRIVER_VERSION ?= 0.0.0", "DRIVER_VERSION ?= "+version)
	return dir
}

func change(t *testing.T, path, from, to string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), from)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o644))
}

// pushDriver pushes the image of a driver for both versions of RHCOS.
func (b *built) pushDriver(t *testing.T, version, source string) {
	t.Helper()
	base, err := tarball.ImageFromPath(program("images/driver.tar"), nil)
	require.NoError(t, err)
	own, err := os.ReadFile(program("simkernel"))
	require.NoError(t, err)
	files := map[string][]byte{"usr/bin/gpu-driver": own, "driver/usr/lib/x86_64-linux-gnu/libcuda.so." + version: nil, "driver/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": nil}
	image, err := mutate.AppendLayers(base, layerOf(t, files, nil), folderLayer(t, source, "driver/usr/src/nvidia-"+version+"/kernel-open"))
	require.NoError(t, err)
	for _, tag := range osTags {
		b.hub.pushImage(t, "gpu/driver:"+version+"-"+tag, image)
	}
}

// folderLayer returns a layer with the files of a folder.
func folderLayer(t *testing.T, dir, at string) gcr.Layer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layer.tar.gz")
	out, err := os.Create(file)
	require.NoError(t, err)
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	require.NoError(t, err)
	w := tar.NewWriter(z)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var link string
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = filepath.Join(at, rel), 0, 0, "", ""
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return errors.Join(err, f.Close())
	}))
	require.NoError(t, errors.Join(w.Close(), z.Close(), out.Close()))
	layer, err := tarball.LayerFromFile(file)
	require.NoError(t, err)
	return layer
}

// bootKernel switches a node to the kernel of a version of RHCOS: its release, its modules
// and the labels that NFD derives. The release changes before any new pod reads it.
func (b *built) bootKernel(t *testing.T, node, version string) {
	t.Helper()
	const folder = "/run/nvidia/kernel"
	k := b.kernels[version]
	gpu := folder + "/sys/bus/pci/devices/0000:04:00.0/"
	for path, text := range map[string]string{
		folder + "/proc/version": "SIMULATED\n", gpu + "vendor": "0x10de\n", gpu + "device": "0x2330\n", gpu + "class": "0x030200\n", folder + "/release": k.Release + "\n",
		folder + "/sys/module/firmware_class/parameters/path": "\n",
	} {
		b.WriteFile(t, node, path, text)
	}
	for path, f := range k.ModuleTree(t, []string{"ecc"}, nil) {
		if f.Source != "" {
			data, err := os.ReadFile(f.Source)
			require.NoError(t, err)
			f.Data = data
		}
		if f.Link == "" && !f.Mode.IsDir() {
			b.WriteFile(t, node, path, string(f.Data))
		}
	}
	b.rhcos(t, node, strings.TrimPrefix(osTags[version], "rhcos"), version, nvidia.TagKernel(k.Release)) // so NFD writes it
}

// policy returns a policy with gpuready's own driver that keeps its builds.
func (b *built) policy(version string) map[string]any {
	return map[string]any{
		"repository": b.hub.Host + "/gpu", "image": "driver", "version": version,
		"prebuild":      map[string]any{"repository": b.hub.Host + "/gpu/driver", "insecure": true},
		"upgradePolicy": map[string]any{"autoUpgrade": true, "maxParallelUpgrades": 0, "maxUnavailable": "100%"},
	}
}

// loaded waits until a node's driver pod is ready and its modules are in the node's kernel.
// It returns the logs of the pod's containers.
func (b *built) loaded(t *testing.T, node, version, daemonset string) (log map[string]string) {
	t.Helper()
	var pod *corev1.Pod
	b.until(t, "the driver's modules are loaded on "+node, func() error {
		if pod = b.driverPods("app=nvidia-driver-daemonset")[node]; pod == nil || metav1.GetControllerOf(pod).Name != daemonset {
			return fmt.Errorf("no pod of %s is ready on %s", daemonset, node)
		}
		modules, err := os.ReadFile(b.Node(node).PathOnNode("/run/nvidia/kernel/proc/modules"))
		if err != nil {
			return err
		}
		for _, m := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
			if !strings.Contains("\n"+string(modules), "\n"+m+" ") {
				return fmt.Errorf("%s is not among the modules: %s", m, modules)
			}
		}
		is, err := os.ReadFile(b.Node(node).PathOnNode("/run/nvidia/kernel/sys/module/nvidia/version"))
		if err != nil || strings.TrimSpace(string(is)) != version {
			return fmt.Errorf("the module nvidia is of version %q, not %s: %w", is, version, err)
		}
		return nil
	})
	log = map[string]string{}
	for _, c := range pod.Spec.Containers {
		log[c.Name] = b.Kubectl(t, "-n", namespace, "logs", pod.Name, "-c", c.Name)
	}
	return log
}

// Containers of a driver pod, and messages in their logs.
const (
	driverContainer  = "nvidia-driver-ctr"
	toolkitContainer = "openshift-driver-toolkit-ctr"

	handedOver = "modules are handed over" // by the Driver Toolkit, once for each build
	pushed     = "what was built is in the registry"
	pulled     = "modules are pulled"
)

// tagOf returns the tag of a build for a version of RHCOS.
func (b *built) tagOf(driver, version string) string {
	return driver + "-" + nvidia.TagKernel(b.kernels[version].Release) + "-" + osTags[version]
}

// inRegistry waits until an image is in the registry.
func (b *built) inRegistry(t *testing.T, tag string) {
	t.Helper()
	b.until(t, tag+" is in the registry", func() error {
		_, err := remote.Head(b.reference(t, tag), remote.WithTransport(b.hub))
		return err
	})
}

func (b *built) reference(t *testing.T, tag string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(b.hub.Host+"/gpu/driver:"+tag, name.Insecure)
	require.NoError(t, err)
	return ref
}

// forget removes the build for a version of RHCOS from the registry and from a node.
func (b *built) forget(t *testing.T, node, version string) {
	t.Helper()
	require.NoError(t, remote.Delete(b.reference(t, b.tagOf(ownVersion, version)), remote.WithTransport(b.hub)))
	b.forgetKept(t, node)
}

func (b *built) forgetKept(t *testing.T, node string) {
	t.Helper()
	_, err := b.Node(node).Exec(t.Context(), "rm", "-rf", "/var/lib/gpuready/driver/kernels")
	require.NoError(t, err)
}

// twoKernels has both nodes build at once, each for its own kernel.
func (b *built) twoKernels(t *testing.T, _ *suite) {
	b.bootKernel(t, "n1", rhcos412)
	b.bootKernel(t, "n2", rhcos418)
	b.apply(t, b.policy(ownVersion))
	b.serves(t, map[string]string{"n1": dtk(rhcos412), "n2": dtk(rhcos418)}, 2)
	for node, version := range map[string]string{"n1": rhcos412, "n2": rhcos418} {
		log := b.loaded(t, node, ownVersion, dtk(version))
		require.Equal(t, 1, strings.Count(log[toolkitContainer], handedOver), log)
		b.inRegistry(t, b.tagOf(ownVersion, version))
	}
	require.Contains(t, b.Kubectl(t, "get", "pods", "-l", "openshift.driver-toolkit=true", "-n", namespace), "2/2")
}

// builtOnce boots a node into a kernel for which another node has already built.
func (b *built) builtOnce(t *testing.T, _ *suite) {
	b.bootKernel(t, "n2", rhcos412)
	log := b.loaded(t, "n2", ownVersion, dtk(rhcos412))
	require.Contains(t, log[driverContainer], pulled)
	require.NotContains(t, log[driverContainer], pushed)
	require.Empty(t, log[toolkitContainer], "nothing is compiled")
	t.Log(log[driverContainer])
	// Back on the kernel for which it has built, the node reuses the modules that it keeps.
	b.bootKernel(t, "n2", rhcos418)
	log = b.loaded(t, "n2", ownVersion, dtk(rhcos418))
	require.Contains(t, log[driverContainer], "modules are taken from those that this node keeps")
	require.Empty(t, log[toolkitContainer])
}

// prebuilt runs a Job that builds for a kernel before any node runs it.
func (b *built) prebuilt(t *testing.T, _ *suite) {
	b.bootKernel(t, "n2", rhcos412)
	b.loaded(t, "n2", ownVersion, dtk(rhcos412))
	b.forget(t, "n2", rhcos418)
	out, err := b.run(t, "kubectl-gpu", "prebuild", "-n", namespace, "--kernel", b.kernels[rhcos418].Release, "--os-tag", "rhcos4.18",
		"--toolkit-image", b.hub.Host+"/openshift/driver-toolkit:debian")
	t.Log(out)
	require.NoError(t, err, out)
	require.Contains(t, out, b.hub.Host+"/gpu/driver:"+b.tagOf(ownVersion, rhcos418))
	b.until(t, "the policy says that it is there", func() error {
		out, err := b.TryKubectl(t, "get", "clusterpolicy", policy, "-o", "jsonpath={.status.prebuilt[*].state} {.status.prebuilt[*].kernel}")
		if err != nil || out != "Present "+b.kernels[rhcos418].Release {
			return fmt.Errorf("%q %w", out, err)
		}
		return nil
	})
	b.bootKernel(t, "n2", rhcos418)
	log := b.loaded(t, "n2", ownVersion, dtk(rhcos418))
	require.Contains(t, log[driverContainer], pulled)
	require.Empty(t, log[toolkitContainer], "nothing is compiled on the node")
}

// fallbackAndBack installs the next driver, which has no precompiled images. The builds of
// the pools become such images.
func (b *built) fallbackAndBack(t *testing.T, _ *suite) {
	b.pushDriver(t, nextVersion, driverSources(t, nextVersion))
	d := b.policy(nextVersion)
	d["usePrecompiled"], d["precompiledFallback"] = true, "DriverToolkit"
	b.apply(t, d)
	pools := map[string]string{"n1": rhcos412, "n2": rhcos418}
	for _, version := range pools {
		b.inRegistry(t, b.tagOf(nextVersion, version))
	}
	for node, version := range pools {
		log := b.loaded(t, node, nextVersion, "nvidia-driver-daemonset-"+strings.ReplaceAll(nvidia.TagKernel(b.kernels[version].Release), "_", ".")+"-"+osTags[version])
		require.NotContains(t, log, toolkitContainer)
		require.NotContains(t, log[driverContainer], pulled, "they are in the image")
	}
	b.apply(t, b.policy(ownVersion))
	for node, version := range pools {
		log := b.loaded(t, node, ownVersion, dtk(version))
		require.Empty(t, log[toolkitContainer])
	}
}

// scriptOfNVIDIA stands in for NVIDIA's program in the Driver Toolkit's container. A driver's
// image carries it among its sources (simkernel). Like NVIDIA's, it creates empty marker files
// in the shared folder and prints nothing while it builds.
const scriptOfNVIDIA = `set -eu
cd /mnt/shared-nvidia-driver-toolkit
touch driver_build_started
set -a
. ./env
set +a
work=$(mktemp -d)
cp -r sources/. "$work"
make -C "/usr/src/linux-headers-$KERNEL_VERSION" M="$work" CC=gcc-12 CONFIG_DEBUG_INFO_BTF_MODULES= nvidia.ko nvidia-uvm.ko nvidia-modeset.ko
mkdir -p modules/kernel/drivers/video
cp "$work"/*.ko modules/kernel/drivers/video/
touch driver_built
echo "stand-in: the modules are in the folder"
while [ -f driver_built ]; do sleep 1; done
`

// sideCarOfNVIDIA pairs the driver containers with side-cars that follow NVIDIA's protocol
// only.
func (b *built) sideCarOfNVIDIA(t *testing.T, _ *suite) {
	source := driverSources(t, scriptVersion)
	require.NoError(t, os.WriteFile(filepath.Join(source, "dtk-build-driver"), []byte(scriptOfNVIDIA), 0o755))
	b.pushDriver(t, scriptVersion, source)
	b.apply(t, b.policy(scriptVersion))
	for node, version := range map[string]string{"n1": rhcos412, "n2": rhcos418} {
		log := b.loaded(t, node, scriptVersion, dtk(version))
		require.Contains(t, log[toolkitContainer], "stand-in: the modules are in the folder")
		require.Contains(t, log[driverContainer], "will not say how far it is")
	}
}

// buildsFail installs sources that fail on both kernels, on each for a different reason.
func (b *built) buildsFail(t *testing.T, _ *suite) {
	source := driverSources(t, brokenVersion)
	change(t, filepath.Join(source, "nvidia.c"), "static int stub_open(", `#include <linux/pci.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
int nvidia_resize(struct pci_dev *d);
int nvidia_resize(struct pci_dev *d) { return pci_resize_resource(d, 0); }
#else
int broken( { }
#endif
static int stub_open(`)
	b.pushDriver(t, brokenVersion, source)
	b.apply(t, b.policy(brokenVersion))
	for node, words := range map[string][]string{
		"n1": {"BuildFailed", "nvidia.c:", "pci_resize_resource"},
		"n2": {"BuildFailed", "nvidia.c:", "expected"},
	} {
		b.until(t, "kubectl gpu explain names the file and the error on "+node, func() error {
			out, err := b.run(t, "kubectl-gpu", "explain", "-n", namespace, node)
			return lacks(out, err, words)
		})
	}
	out, _ := b.run(t, "kubectl-gpu", "explain", "-n", namespace, "n1")
	t.Log(out)
	b.reportedEverywhere(t, "n1", "BuildFailed", "pci_resize_resource")
	b.apply(t, b.policy(ownVersion))
	b.serves(t, map[string]string{"n1": dtk(rhcos412), "n2": dtk(rhcos418)}, 2)
	b.loaded(t, "n1", ownVersion, dtk(rhcos412))
}

func lacks(text string, err error, words []string) error {
	for _, w := range words {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), w) {
			return errors.Join(err, fmt.Errorf("there is no %q: %s", w, text))
		}
	}
	return nil
}

// smallFolder is an admission policy that turns the folder shared by the containers of a
// driver's pod into a file system of limited size, in bytes.
const smallFolder = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: small-folder}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
  - name: with-a-driver-toolkit
    expression: "object.metadata.?labels[?'openshift.driver-toolkit'].orValue('') == 'true'"
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "replace", path: "/spec/volumes/" + string(object.spec.volumes.map(v, v.name).indexOf("shared-nvidia-driver-toolkit")) + "/emptyDir",
        value: Object.spec.volumes.emptyDir{medium: "Memory", sizeLimit: "%d"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: small-folder}
spec: {policyName: small-folder}
`

// folderPod is a pod to which smallFolder applies.
const folderPod = `
apiVersion: v1
kind: Pod
metadata: {name: folder, namespace: default, labels: {openshift.driver-toolkit: "true"}}
spec:
  containers: [{name: none, image: none}]
  volumes: [{name: shared-nvidia-driver-toolkit, emptyDir: {sizeLimit: 2Gi}}]
`

// folderIs waits until the shared folder of new pods has the given medium.
func (b *built) folderIs(t *testing.T, medium string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	require.NoError(t, os.WriteFile(file, []byte(folderPod), 0o644))
	b.until(t, fmt.Sprintf("the folders of new pods are of the medium %q", medium), func() error {
		out, err := b.TryKubectl(t, "create", "--dry-run=server", "-f", file, "-o", "jsonpath={.spec.volumes[0].emptyDir.medium}")
		if err != nil || out != medium {
			return fmt.Errorf("%q %w", out, err)
		}
		return nil
	})
}

// deletePod deletes the driver pod of a node.
func (b *built) deletePod(t *testing.T, node string) {
	t.Helper()
	for _, p := range b.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		if p.Spec.NodeName == node {
			b.Kubectl(t, "-n", namespace, "delete", "pod", p.Name)
		}
	}
}

// sharedFolderFull leaves room for one copy of the program between the two containers, but
// not for the sources.
func (b *built) sharedFolderFull(t *testing.T, _ *suite) {
	b.forget(t, "n1", rhcos412)
	info, err := os.Stat(program("simkernel"))
	require.NoError(t, err)
	b.ApplyText(t, fmt.Sprintf(smallFolder, info.Size()*3/2))
	b.folderIs(t, "Memory")
	b.deletePod(t, "n1")
	b.until(t, "kubectl gpu explain names the folder on n1", func() error {
		out, err := b.run(t, "kubectl-gpu", "explain", "-n", namespace, "n1")
		return lacks(out, err, []string{"ToolkitBroken", "/mnt/shared-nvidia-driver-toolkit, which is shared with the Driver Toolkit, is full", "raise sizeLimit"})
	})
	out, _ := b.run(t, "kubectl-gpu", "explain", "-n", namespace, "n1")
	t.Log(out)
	b.Kubectl(t, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "small-folder")
	b.folderIs(t, "")
}

// sideCarKilled kills the Driver Toolkit while it rebuilds the build that sharedFolderFull
// removed from the node. The build starts again.
func (b *built) sideCarKilled(t *testing.T, _ *suite) {
	b.deletePod(t, "n1")
	b.until(t, "the compiler runs", func() error {
		_, err := b.Node("n1").Exec(t.Context(), "pgrep", "-x", "cc1")
		return err
	})
	_, err := b.Node("n1").Exec(t.Context(), "pkill", "-KILL", "-f", "ocp_dtk_entrypoint dtk-build-driver")
	require.NoError(t, err)
	log := b.loaded(t, "n1", ownVersion, dtk(rhcos412))
	require.Equal(t, 1, strings.Count(log[toolkitContainer], handedOver), log)
	for _, c := range b.driverPods("app=nvidia-driver-daemonset")["n1"].Status.ContainerStatuses {
		require.EqualValues(t, map[string]int32{toolkitContainer: 1}[c.Name], c.RestartCount, c.Name)
	}
}
