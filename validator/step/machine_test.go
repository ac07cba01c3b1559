package step

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
)

func TestMain(m *testing.M) { leak.Main(m) }

// machine is a host's root in a folder.
type machine struct {
	t *testing.T
	check.Node
}

// New returns a machine with the modules loaded.
func newMachine(t *testing.T, modules ...string) *machine {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	m := &machine{t: t, Node: check.Node{Root: root}}
	for _, name := range modules {
		m.Load(name)
	}
	return m
}

// provenDriver returns a proven driver with two GPUs.
func provenDriver() check.Driver {
	return check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, DevRoot: "/", GPUs: gputest.Node("h100-sxm", 2).Devices}
}

// File writes a file.
func (m *machine) File(name, content string) {
	m.t.Helper()
	p := m.Root.Path(name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(m.t, os.WriteFile(p, []byte(content), 0o644))
}

// Link creates a symbolic link.
func (m *machine) Link(name, target string) {
	m.t.Helper()
	p := m.Root.Path(name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(m.t, os.Symlink(target, p))
}

// Load loads a module.
func (m *machine) Load(module string) { m.File("/sys/module/"+module+"/initstate", "live\n") }

// Majors registers a driver of character devices.
func (m *machine) Majors(text string) {
	m.File("/proc/devices", "Character devices:\n  1 mem\n"+text+"\n\nBlock devices:\n  8 sd\n")
}

// Device creates a device node; it skips the test if that is not permitted.
func (m *machine) Device(name string, major, minor int) {
	m.t.Helper()
	p := m.Root.Path("/dev/" + name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(p), 0o755))
	_ = os.Remove(p)
	if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(major), uint32(minor)))); err != nil {
		m.t.Skipf("making device nodes needs root: %v", err)
	}
}

// PCI puts a device on the bus; driver may be "".
func (m *machine) PCI(address, vendor, class, driver string) {
	dir := host.PCIDevices + "/" + address
	m.File(dir+"/vendor", vendor+"\n")
	m.File(dir+"/class", class+"\n")
	if driver != "" {
		m.Link(dir+"/driver", "../../../../bus/pci/drivers/"+driver)
	}
}

// requireRefused requires a failure with the reason, a message that contains says, and an action.
func requireRefused(t *testing.T, o check.Outcome, reason, says string) {
	t.Helper()
	require.Equal(t, check.Failed, o.Kind, "%+v", o.Proof)
	require.Equal(t, reason, string(o.NotReady.Reason), o.NotReady.Message)
	require.Contains(t, o.NotReady.Message, says)
	require.NotEmpty(t, o.NotReady.Action)
}

// requireProven requires a pass and its summary.
func requireProven(t *testing.T, o check.Outcome, summary string) {
	t.Helper()
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, summary, o.Proof.Summary)
}
