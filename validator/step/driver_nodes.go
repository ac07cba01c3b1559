package step

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/validator/check"
)

// deviceNode is a device node as the driver expects it.
type deviceNode struct {
	name         string
	major, minor int
}

// wantedNodes returns the device nodes that every CUDA program opens.
func (h hardware) wantedNodes(d check.Driver) []deviceNode {
	const controlMinor = 255
	want := []deviceNode{{"nvidiactl", h.frontend(), controlMinor}}
	if uvm, ok := h.majors["nvidia-uvm"]; ok {
		want = append(want, deviceNode{"nvidia-uvm", uvm, 0})
	}
	for _, g := range d.GPUs {
		if g.Fault == (gpu.Fault{}) {
			want = append(want, deviceNode{fmt.Sprintf("nvidia%d", g.Minor), h.frontend(), g.Minor})
		}
	}
	return want
}

// checkNodes checks the device nodes.
func checkNodes(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	if _, ok := h.majors["nvidia-uvm"]; !ok && !h.moduleHidden(d) {
		return failed(reasonUVMMissing, "the kernel module nvidia-uvm, which CUDA needs, is not loaded: /proc/devices does not list it",
			"load it with modprobe nvidia-uvm")
	}
	for _, n := range h.wantedNodes(d) {
		p := path.Join(d.DevRoot, "dev", n.name)
		info, err := h.node.Root.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return failed(reasonDeviceNode, "the device node "+p+" is not there",
				"gpu-toolkit makes it; by hand: nvidia-modprobe -u -c=0")
		}
		if err != nil {
			return failed(reasonDeviceNode, err.Error(), "make the path readable for this process")
		}
		major, minor, found := host.Device(info)
		if !found && d.Info.Simulated && info.Mode().IsRegular() {
			continue // a simulated driver root where mknod is not permitted
		}
		if !found || int(major) != n.major || int(minor) != n.minor {
			have := "no character device"
			if found {
				have = fmt.Sprintf("character device %d:%d", major, minor)
			}
			return failed(reasonDeviceNodeWrong,
				fmt.Sprintf("%s is %s, the driver expects %d:%d", p, have, n.major, n.minor),
				fmt.Sprintf("remove it and make it anew: rm %s && mknod -m 666 %s c %d %d", p, p, n.major, n.minor))
		}
	}
	return nil
}

// linkNotes returns notes about device nodes without a link below /dev/char. Everything works
// without the links until systemd reloads its units. It then rewrites the device rules of
// containers by these links, and running containers lose the devices without one. That is no
// reason to refuse a node, but must be known in advance.
func (h hardware) linkNotes(d check.Driver) []string {
	if d.Info.Simulated || !h.node.Visible("/dev/char") { // a simulated driver's nodes lead nowhere in any case
		return nil
	}
	var missing []string
	for _, n := range h.wantedNodes(d) {
		link := fmt.Sprintf("/dev/char/%d:%d", n.major, n.minor)
		if linked, err := h.node.Root.Stat(link); err == nil {
			if major, minor, ok := host.Device(linked); ok && int(major) == n.major && int(minor) == n.minor {
				continue
			}
		}
		missing = append(missing, link)
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s: after systemctl daemon-reload running containers lose these devices where the runtime uses systemd's cgroups; gpu-toolkit makes the links, by hand nvidia-ctk system create-dev-char-symlinks --create-all",
		reasonDeviceLink, strings.Join(missing, ", "))}
}
