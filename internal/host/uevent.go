package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
)

// DeviceEvent is an event of the kernel (uevent) about a PCI device of NVIDIA, which came, went, or was bound to
// or unbound from a driver, or about a kernel module of NVIDIA's driver, which is loaded or was unloaded. The
// kernel announces a module before it runs its initialisation, and a bound device after that.
type DeviceEvent struct {
	PCI gpu.PCIAddress // "": a module, or events were lost, so that any device may have changed
}

// nvidiaVendor is NVIDIA's PCI vendor ID as uevents write it (drivers/pci/pci-driver.c, pci_uevent).
const nvidiaVendor = "10DE"

// ueventSize is more than the kernel writes of one event: 2 KiB (UEVENT_BUFFER_SIZE in
// include/linux/kobject.h), and a header.
const ueventSize = 8 << 10

// WatchDevices calls changed at each such event until ctx ends, whose error it returns. Every network namespace
// gets the kernel's events, unless it belongs to another user namespace (lib/kobject_uevent.c).
func WatchDevices(ctx context.Context, changed func(DeviceEvent)) error {
	return watchDevices(ctx, nvidiaVendor, nil, changed)
}

// watchDevices calls ready, if it is not nil, once no later event is missed.
func watchDevices(ctx context.Context, vendor string, ready func(), changed func(DeviceEvent)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open a socket for the kernel's events of devices: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	defer func() { _ = socket.Close() }()
	const kernelGroup = 1 // 2 is udev's
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return fmt.Errorf("receive the kernel's events of devices: %w", err)
	}
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	if ready != nil {
		ready()
	}
	data := make([]byte, ueventSize)
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), data, 0)
			return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
		})
		switch sender, ok := from.(*unix.SockaddrNetlink); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(failed, unix.ENOBUFS):
			changed(DeviceEvent{})
		case errors.Join(err, failed) != nil:
			return fmt.Errorf("receive the kernel's events of devices: %w", errors.Join(err, failed))
		case !ok || sender.Pid != 0: // not of the kernel
		default:
			if event, ok := parseUevent(string(data[:n]), vendor); ok {
				changed(event)
			}
		}
	}
}

// parseUevent returns the event of a message of the kernel: "ACTION@DEVPATH" and variables "NAME=value", each
// ended by a zero byte. It reports false for devices of other vendors and for other modules.
func parseUevent(message, vendor string) (event DeviceEvent, ok bool) {
	variables := map[string]string{}
	for line := range strings.SplitSeq(message, "\x00") {
		if name, value, found := strings.Cut(line, "="); found {
			variables[name] = value
		}
	}
	switch variables["SUBSYSTEM"] {
	case "module":
		switch variables["DEVPATH"] {
		case "/module/nvidia", "/module/nvidia_uvm":
			return DeviceEvent{}, true
		}
	case "pci":
		if !strings.HasPrefix(variables["PCI_ID"], vendor+":") {
			return DeviceEvent{}, false
		}
		address, err := gpu.ParsePCIAddress(variables["PCI_SLOT_NAME"])
		return DeviceEvent{PCI: address}, err == nil
	}
	return DeviceEvent{}, false
}
