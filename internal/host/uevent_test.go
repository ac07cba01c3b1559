package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

// TestEventsOfTheKernelAreReceived lets the real kernel repeat its event of a real PCI device, of whatever vendor.
func TestEventsOfTheKernelAreReceived(t *testing.T) {
	devices, err := filepath.Glob(PCIDevices + "/*")
	require.NoError(t, err)
	if len(devices) == 0 || os.Geteuid() != 0 {
		t.Skip("needs root and a machine with a PCI bus")
	}
	device := devices[0]
	announce := func() error { return os.WriteFile(filepath.Join(device, "uevent"), []byte("change"), 0o200) }
	if err := announce(); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Skip("sysfs is read-only here")
	}
	vendor, err := os.ReadFile(filepath.Join(device, "vendor"))
	require.NoError(t, err)
	id := strings.ToUpper(strings.TrimPrefix(strings.TrimSpace(string(vendor)), "0x"))
	want, err := gpu.ParsePCIAddress(filepath.Base(device))
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ready := make(chan struct{})
	events := make(chan DeviceEvent, 1000)
	ended := make(chan error, 1)
	go func() {
		ended <- watchDevices(ctx, id, func() { close(ready) }, func(e DeviceEvent) { events <- e })
	}()
	<-ready
	require.NoError(t, announce())
	for got := (DeviceEvent{}); got.PCI != want; { // of others, the kernel may tell now, too
		select {
		case got = <-events:
		case err := <-ended:
			require.NoError(t, err)
		}
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestOnlyEventsOfNVIDIACount(t *testing.T) {
	pci := func(id string) string {
		return "bind@/devices/pci0000:00/0000:01:00.0\x00ACTION=bind\x00DEVPATH=/devices/pci0000:00/0000:01:00.0\x00SUBSYSTEM=pci\x00DRIVER=nvidia\x00" +
			"PCI_CLASS=30200\x00PCI_ID=" + id + "\x00PCI_SLOT_NAME=0000:01:00.0\x00SEQNUM=7\x00"
	}
	module := func(name string) string {
		return "add@/module/" + name + "\x00ACTION=add\x00DEVPATH=/module/" + name + "\x00SUBSYSTEM=module\x00SEQNUM=7\x00"
	}
	for _, c := range []struct {
		message string
		want    DeviceEvent
		counts  bool
	}{
		{pci("10DE:2330"), DeviceEvent{PCI: "0000:01:00.0"}, true},
		{pci("1AF4:1045"), DeviceEvent{}, false},
		{pci("10DEF:1045"), DeviceEvent{}, false},
		{strings.ReplaceAll(pci("10DE:2330"), "0000:01:00.0", "somewhere"), DeviceEvent{}, false},
		{module("nvidia"), DeviceEvent{}, true},
		{module("nvidia_uvm"), DeviceEvent{}, true},
		{module("nvidiafb"), DeviceEvent{}, false},
		{"libudev\x00SUBSYSTEM", DeviceEvent{}, false},
		{"", DeviceEvent{}, false},
	} {
		event, counts := parseUevent(c.message, nvidiaVendor)
		require.Equal(t, c.counts, counts, c.message)
		if counts {
			require.Equal(t, c.want, event)
		}
	}
}
