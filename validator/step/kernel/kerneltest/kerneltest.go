// Package kerneltest builds nodes from files of /proc and /sys, for tests of the steps that
// read the kernel's files.
package kerneltest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// Machine is a host's root in a folder.
type Machine struct {
	t *testing.T
	check.Node
}

// New returns a Machine with the modules loaded.
func New(t *testing.T, modules ...string) *Machine {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	m := &Machine{t: t, Node: check.Node{Root: root}}
	for _, name := range modules {
		m.Load(name)
	}
	return m
}

// Driver returns a proven driver with two GPUs.
func Driver() check.Driver {
	return check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, DevRoot: "/", GPUs: gputest.Node("h100-sxm", 2).Devices}
}

// File writes a file.
func (m *Machine) File(name, content string) {
	m.t.Helper()
	p := m.Root.Path(name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(m.t, os.WriteFile(p, []byte(content), 0o644))
}

// Link creates a symbolic link.
func (m *Machine) Link(name, target string) {
	m.t.Helper()
	p := m.Root.Path(name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(m.t, os.Symlink(target, p))
}

// Load loads a module.
func (m *Machine) Load(module string) { m.File("/sys/module/"+module+"/initstate", "live\n") }

// Majors registers a driver of character devices.
func (m *Machine) Majors(text string) {
	m.File("/proc/devices", "Character devices:\n  1 mem\n"+text+"\n\nBlock devices:\n  8 sd\n")
}

// Device creates a device node; it skips the test if that is not permitted.
func (m *Machine) Device(name string, major, minor uint32) {
	m.t.Helper()
	p := m.Root.Path("/dev/" + name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		m.t.Skipf("making device nodes needs root: %v", err)
	}
}

// PCI puts a device on the bus; driver may be "".
func (m *Machine) PCI(address, vendor, class, driver string) {
	dir := host.PCIDevices + "/" + address
	m.File(dir+"/vendor", vendor+"\n")
	m.File(dir+"/class", class+"\n")
	if driver != "" {
		m.Link(dir+"/driver", "../../../../bus/pci/drivers/"+driver)
	}
}

// Refused requires a failure with the reason, a message that contains says, and an action.
func Refused(t *testing.T, o check.Outcome, reason, says string) {
	t.Helper()
	require.Equal(t, check.Failed, o.Kind, "%+v", o.Proof)
	require.Equal(t, reason, string(o.Refusal.Reason), o.Refusal.Message)
	require.Contains(t, o.Refusal.Message, says)
	require.NotEmpty(t, o.Refusal.Action)
}

// Proven requires a pass and its summary.
func Proven(t *testing.T, o check.Outcome, summary string) {
	t.Helper()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.Refusal)
	require.Equal(t, summary, o.Proof.Summary)
}
