package validator

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
)

// kernelModule changes the module's version file, which only the module creates, and makes NVML fail as
// it then does.
func kernelModule(name, fails, reason string, breaks func(*testing.T, *node), words ...string) situation {
	var was string
	return situation{
		name: name, layer: readiness.Driver, reason: reason, words: words,
		prepare: func(t *testing.T, n *node) {
			was = n.read(t, moduleVersion)
			n.gpusim(t, "fail", "--init", fails)
		},
		breaks: breaks,
		mends: func(t *testing.T, n *node) {
			n.gpusim(t, "fail", "--init", "none")
			n.write(t, moduleVersion, was)
		},
	}
}

func driverSituations() []situation {
	const device = driverRoot + "/dev/nvidia2"
	return []situation{
		kernelModule("the kernel module is not loaded", "driver-not-loaded", "KernelModuleNotLoaded",
			func(t *testing.T, n *node) { n.remove(t, moduleVersion) }, "modprobe nvidia"),
		kernelModule("the libraries are of another version than the module", "lib-rm-version-mismatch", "DriverVersionMismatch",
			func(t *testing.T, n *node) {
				n.write(t, moduleVersion, strings.ReplaceAll(n.read(t, moduleVersion), "580.", "570."))
			}, "570.", "580.", "reboot"),
		{
			name: "a device node is missing", layer: readiness.Driver, reason: "DeviceNodeMissing", words: []string{device},
			prepare: func(t *testing.T, n *node) { n.signal(t, "STOP", "gpu-toolkit") }, // which creates them
			breaks:  func(t *testing.T, n *node) { n.rename(t, device, driverRoot+"/away") },
			mends: func(t *testing.T, n *node) {
				n.rename(t, driverRoot+"/away", device)
				n.signal(t, "CONT", "gpu-toolkit")
			},
		},
		{
			name: "a GPU that a pod holds has fallen off the bus", reason: "Degraded",
			prepare: func(t *testing.T, n *node) { n.occupy(t, holder) },
			breaks:  func(t *testing.T, n *node) { n.gpusim(t, "lose", "--gpu", "2") },
			reported: func(_ *testing.T, n *node) error {
				return n.condition(corev1.ConditionTrue, "Degraded", "GPU 2 (", "XID 79 (the GPU no longer answers on PCIe)", "held by default/"+holder.Name, "reboot the node")
			},
			also: func(t *testing.T, n *node) {
				n.until(t, "an Event names the pod and what to do", func() error {
					for _, e := range n.World.Events("Node", n.name) {
						if e.Reason == "XID" && strings.Contains(e.Message, "held by default/"+holder.Name) && strings.Contains(e.Message, "reboot the node") {
							return nil
						}
					}
					return errors.New("there is none")
				})
				n.refusedByPreflight(t, 40, "XID 79", "reboot the node")
			},
			mends: func(t *testing.T, n *node) {
				n.delete(t, "default", holder.Name)
				n.reset(t, "2")
			},
		},
	}
}
