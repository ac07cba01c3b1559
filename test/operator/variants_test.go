package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Versions of RHCOS and their kernels.
const (
	rhcos412  = "412.86.202303241612-0"
	kernel412 = "4.18.0-372.51.1.el8_6.x86_64"
	rhcos418  = "418.94.202501221327-0"
	kernel418 = "5.14.0-427.50.1.el9_4.x86_64"
)

const driverVersion = "525.105.17"

// TestVariants covers the ways in which an OpenShift node gets its driver.
func TestVariants(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Nodes: 2})
	h := s.startRegistry(t)
	v := &variants{suite: s, hub: h}
	s.play(t,
		scenario{"Install", v.install},
		scenario{"DriverToolkit", v.driverToolkit},
		scenario{"RHCOSUpgrade", v.rhcosUpgrade},
		scenario{"NoToolkitImage", v.noToolkitImage},
		scenario{"PrecompiledMissing", v.precompiledMissing},
		scenario{"PrecompiledAppears", v.precompiledAppears},
		scenario{"PrecompiledOff", v.precompiledOff},
		scenario{"FallbackAndBack", v.fallbackAndBack},
		scenario{"DriverOfTheHost", v.driverOfTheHost},
	)
}

type variants struct {
	*suite
	hub *hub
}

// rhcos makes a node look like an OpenShift node with NFD's labels.
func (v *variants) rhcos(t *testing.T, node, version, ostree, kernel string) {
	t.Helper()
	const feature = "feature.node.kubernetes.io/"
	v.Kubectl(t, "label", "--overwrite", "node", node, feature+"pci-10de.present=true", feature+"kernel-version.full="+kernel,
		feature+"system-os_release.ID=rhcos", feature+"system-os_release.VERSION_ID="+version, feature+"system-os_release.OSTREE_VERSION="+ostree)
}

// imageStream creates the Driver Toolkit's image tags for these versions.
func (v *variants) imageStream(t *testing.T, image string, versions ...string) {
	t.Helper()
	var spec, status []any
	for _, version := range versions {
		spec = append(spec, map[string]any{"name": version, "from": map[string]any{"kind": "DockerImage", "name": image}})
		status = append(status, map[string]any{"tag": version, "items": []any{map[string]any{"dockerImageReference": image}}})
	}
	stream, err := json.Marshal(map[string]any{
		"apiVersion": "image.openshift.io/v1", "kind": "ImageStream",
		"metadata": map[string]any{"name": "driver-toolkit", "namespace": "openshift"},
		"spec":     map[string]any{"tags": spec}, "status": map[string]any{"tags": status},
	})
	require.NoError(t, err)
	v.ApplyText(t, string(stream))
}

// install installs on an imitated OpenShift, without a policy: users write their own.
func (v *variants) install(t *testing.T, _ *suite) {
	v.Kubectl(t, "create", "namespace", "openshift")
	v.Kubectl(t, "apply", "-f", "testdata/openshift.yaml")
	v.served(t, "crd/imagestreams.image.openshift.io", "crd/securitycontextconstraints.security.openshift.io")
	v.imageStream(t, v.hub.push(t, "openshift/driver-toolkit:"+rhcos412), rhcos412)
	v.helm(t, "install", "gpuready", chart(), "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "3m",
		"--set", "nfd.enabled=false", "--set", "clusterPolicy.create=false",
		// The tests' registry has no TLS.
		"--set", "operator.insecureRegistries={"+v.hub.Host+"}")
}

// apply applies the policy from a file named as in the documentation.
func (v *variants) apply(t *testing.T, driver map[string]any) string {
	t.Helper()
	doc, err := json.MarshalIndent(map[string]any{
		"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": map[string]any{"name": policy},
		"spec": map[string]any{
			"driver":    driver,
			"validator": map[string]any{"env": []any{map[string]any{"name": "ALLOW_SIMULATED", "value": "true"}}},
		},
	}, "", "  ")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "clusterpolicy.json")
	require.NoError(t, os.WriteFile(file, doc, 0o644))
	return v.Kubectl(t, "apply", "-f", file)
}

// building returns driver settings for a driver that is built; the image stands in for one.
func (v *variants) building() map[string]any {
	return map[string]any{"repository": v.hub.Host + "/nvidia", "image": "driver", "version": driverVersion,
		"upgradePolicy": map[string]any{"autoUpgrade": true, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}}
}

// precompiled returns driver settings for precompiled images.
func (v *variants) precompiled() map[string]any {
	d := v.building()
	d["usePrecompiled"] = true
	return d
}

// driverPods returns the driver pods whose containers are all ready, by their node.
func (v *variants) driverPods(label string) map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	for _, p := range v.World.Pods(namespace, label) {
		ready := len(p.Status.ContainerStatuses) > 0 && p.DeletionTimestamp == nil
		for _, c := range p.Status.ContainerStatuses {
			ready = ready && c.Ready
		}
		if ready {
			pods[p.Spec.NodeName] = p
		}
	}
	return pods
}

// serves waits until each node has a ready driver pod of the DaemonSet of that name.
func (v *variants) serves(t *testing.T, daemonsets map[string]string, containers int) {
	t.Helper()
	v.until(t, fmt.Sprintf("the drivers' pods are of %v", daemonsets), func() error {
		pods := v.driverPods("app=nvidia-driver-daemonset")
		for node, ds := range daemonsets {
			p := pods[node]
			if p == nil {
				return fmt.Errorf("%s has no driver pod that is ready", node)
			}
			if ok, _ := regexp.MatchString("^"+regexp.QuoteMeta(ds)+"-[a-z0-9]{5}$", p.Name); !ok || containers > 0 && len(p.Spec.Containers) != containers {
				return fmt.Errorf("%s has %s with %d containers", node, p.Name, len(p.Spec.Containers))
			}
		}
		if len(pods) != len(daemonsets) {
			return fmt.Errorf("there are driver pods on %v", slices.Sorted(maps.Keys(pods)))
		}
		return nil
	})
}

func dtk(version string) string { return "nvidia-driver-daemonset-" + version }

// driverToolkit applies the default on OpenShift.
func (v *variants) driverToolkit(t *testing.T, _ *suite) {
	v.hub.push(t, "nvidia/driver:"+driverVersion+"-rhcos4.12")
	for _, n := range v.Nodes {
		v.rhcos(t, n.Name, "4.12", rhcos412, kernel412)
	}
	v.apply(t, v.building())
	v.serves(t, map[string]string{"n1": dtk(rhcos412), "n2": dtk(rhcos412)}, 2)
	out := v.Kubectl(t, "get", "pods", "-l", "openshift.driver-toolkit=true", "-n", namespace)
	assert.Regexp(t, `(?m)^nvidia-driver-daemonset-412\.86\.202303241612-0-[a-z0-9]{5} +2/2 +Running`, out)
	v.proven(t)
}

// rhcosUpgrade reboots the nodes, one after the other, into the next version.
func (v *variants) rhcosUpgrade(t *testing.T, _ *suite) {
	v.hub.push(t, "nvidia/driver:"+driverVersion+"-rhcos4.18")
	v.imageStream(t, v.hub.push(t, "openshift/driver-toolkit:"+rhcos418), rhcos412, rhcos418)
	v.rhcos(t, "n2", "4.18", rhcos418, kernel418)
	v.serves(t, map[string]string{"n1": dtk(rhcos412), "n2": dtk(rhcos418)}, 2)
	v.rhcos(t, "n1", "4.18", rhcos418, kernel418)
	v.serves(t, map[string]string{"n1": dtk(rhcos418), "n2": dtk(rhcos418)}, 2)
	v.until(t, "the DaemonSet of the version that no node has is deleted", func() error {
		if out, err := v.TryKubectl(t, "-n", namespace, "get", "daemonset", dtk(rhcos412)); err == nil || !strings.Contains(out, "NotFound") {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
	v.proven(t)
}

// noToolkitImage uses a version for which the cluster has no Driver Toolkit.
func (v *variants) noToolkitImage(t *testing.T, _ *suite) {
	const unheard = "419.94.202509010000-0"
	v.rhcos(t, "n2", "4.18", unheard, kernel418)
	v.until(t, "the policy names the version and the node", func() error {
		return v.condition(t, policy, "Degraded", "True", "DriverToolkitImageMissing", unheard, "n2")
	})
	v.showsFailure(t, "gpuready_operator_driver_problem_pools", `reason="DriverToolkitImageMissing"`)
	v.rhcos(t, "n2", "4.18", rhcos418, kernel418)
	v.serves(t, map[string]string{"n1": dtk(rhcos418), "n2": dtk(rhcos418)}, 2)
	v.proven(t)
}

// loaded is the DaemonSet for the nodes' kernel. Kubernetes names cannot contain an
// underscore, so it becomes a dot.
const loaded = "nvidia-driver-daemonset-5.14.0-427.50.1.el9.4-rhcos4.18"

// precompiledMissing enables precompiled images before anybody has built one.
func (v *variants) precompiledMissing(t *testing.T, _ *suite) {
	out := v.apply(t, v.precompiled())
	assert.Contains(t, out, "clusterpolicy.nvidia.com/"+policy+" configured")
	v.until(t, "the policy names the exact tag", func() error {
		return v.condition(t, policy, "Degraded", "True", "PrecompiledImageMissing", v.tag())
	})
	v.showsFailure(t, "gpuready_operator_driver_problem_pools", `reason="PrecompiledImageMissing"`)
	v.serves(t, map[string]string{"n1": dtk(rhcos418), "n2": dtk(rhcos418)}, 2)
}

func (v *variants) tag() string {
	return v.hub.Host + "/nvidia/driver:" + driverVersion + "-" + kernel418 + "-rhcos4.18"
}

// precompiledAppears pushes the image.
func (v *variants) precompiledAppears(t *testing.T, _ *suite) {
	v.hub.push(t, "nvidia/driver:"+driverVersion+"-"+kernel418+"-rhcos4.18")
	v.serves(t, map[string]string{"n1": loaded, "n2": loaded}, 1)
	v.proven(t)
	for _, p := range v.driverPods("app=nvidia-driver-daemonset") {
		assert.Equal(t, v.tag(), p.Spec.Containers[0].Image)
	}
}

// precompiledOff runs the two commands, with kubectl in place of oc, of NVIDIA's documentation, "Disabling
// Support for Precompiled Driver Containers":
// https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/gpu-operator-with-precompiled-drivers.html
func (v *variants) precompiledOff(t *testing.T, _ *suite) {
	newest, err := nvidia.FindRelease("")
	require.NoError(t, err)
	v.hub.load(t, v.suite, driver.NVIDIAImages(newest, "")["driver"].Ref(v1.ImageSpec{})+"-rhcos4.18")
	out := v.Kubectl(t, "patch", "clusterpolicy/gpu-cluster-policy", "--type=json", `-p=[{"op": "replace", "path": "/spec/driver/usePrecompiled", "value":false},`+
		`{"op": "remove", "path": "/spec/driver/version"},{"op": "remove", "path": "/spec/driver/image"},{"op": "remove", "path": "/spec/driver/repository"}]`)
	assert.Equal(t, "clusterpolicy.nvidia.com/gpu-cluster-policy patched\n", out)
	// The policy now names no driver: that of NVIDIA's newest release, which the nodes already have.
	v.until(t, "the nodes have drivers that are built, no kernel in their pods' names", func() error {
		out, err := v.TryKubectl(t, "get", "pods", "-l", "openshift.driver-toolkit=true", "-n", namespace)
		if err != nil {
			return err
		}
		if strings.Count(out, "nvidia-driver-daemonset-"+rhcos418) != 2 || strings.Contains(out, "el9") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	t.Log(v.Kubectl(t, "get", "pods", "-l", "openshift.driver-toolkit=true", "-n", namespace))
	v.apply(t, v.building())
	v.serves(t, map[string]string{"n1": dtk(rhcos418), "n2": dtk(rhcos418)}, 2)
	v.proven(t)
}

// fallbackAndBack has one pool build until its image appears.
func (v *variants) fallbackAndBack(t *testing.T, _ *suite) {
	d := v.precompiled()
	d["precompiledFallback"] = "DriverToolkit"
	v.rhcos(t, "n2", "4.12", rhcos412, kernel412)
	v.apply(t, d)
	v.serves(t, map[string]string{"n1": loaded, "n2": dtk(rhcos412)}, 0)
	v.hub.push(t, "nvidia/driver:"+driverVersion+"-"+kernel412+"-rhcos4.12")
	v.serves(t, map[string]string{"n1": loaded, "n2": "nvidia-driver-daemonset-4.18.0-372.51.1.el8.6-rhcos4.12"}, 1)
	v.proven(t)
}

// driverOfTheHost uses the host's driver, without a driver DaemonSet.
func (v *variants) driverOfTheHost(t *testing.T, _ *suite) {
	v.apply(t, map[string]any{"enabled": false})
	v.until(t, "there is no driver DaemonSet", func() error {
		out, err := v.TryKubectl(t, "-n", namespace, "get", "daemonsets", "-o", "name")
		if err != nil || strings.Contains(out, "nvidia-driver-daemonset") {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
}
