package nvml

import (
	"errors"
	"math/bits"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// places holds the file systems with information about GPUs outside NVML.
type places struct {
	sys  *host.Root // holds /sys
	proc *host.Root // holds /proc/driver/nvidia
}

// openPlaces opens the host's /sys, and /proc: /proc/driver is the same in
// every container. A simulated driver has stand-ins for both in its root.
func openPlaces(o Options, simulated bool) (places, error) {
	open := func(dir string) (*host.Root, error) { return host.Open(dir) }
	hostRoot := o.HostRoot
	procRoot := "/"
	if simulated {
		open = func(string) (*host.Root, error) { return openDriverRoot(o.HostRoot, o.DriverRoot) }
	}
	var p places
	var err error
	if p.sys, err = open(hostRoot); err != nil {
		return places{}, err
	}
	if p.proc, err = open(procRoot); err != nil {
		return places{}, errors.Join(err, p.sys.Close())
	}
	return p, nil
}

// Close lets go of the directories.
func (p places) Close() error {
	var errs []error
	for _, root := range []*host.Root{p.sys, p.proc} {
		if root != nil {
			errs = append(errs, root.Close())
		}
	}
	return errors.Join(errs...)
}

// numa returns the NUMA node nearest to a GPU, -1 if there is none. A slot does not
// move while the machine runs, so a node is looked up once.
func (s *Source) numa(address gpu.PCIAddress, device nvml.Device) int {
	s.mu.Lock()
	node, known := s.memory.numa[address]
	s.mu.Unlock()
	if known {
		return node
	}
	if node = s.places.numa(address); node < 0 {
		node = s.numaFromAffinity(device)
	}
	if node >= 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.memory.numa[address] = node
	}
	return node
}

// numa reads the NUMA node of a PCI device from sysfs; -1 if there is none.
func (p places) numa(address gpu.PCIAddress) int {
	if p.sys == nil {
		return -1
	}
	// Every link in sysfs leads to another place in it, so the kernel may follow them: to
	// resolve them part by part takes 20 system calls a GPU. In a simulated driver's root it
	// may be anything, hence not blocking and bounded.
	file, err := os.OpenFile(p.sys.Path("/sys/bus/pci/devices/"+string(address)+"/numa_node"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	defer file.Close()
	data := make([]byte, 32)
	n, err := file.Read(data)
	if err != nil {
		return -1
	}
	data = data[:n]
	node, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// numaFromAffinity asks NVML for the nearest NUMA nodes; the result counts only if
// there is exactly one.
func (s *Source) numaFromAffinity(device nvml.Device) int {
	if !s.has["nvmlDeviceGetMemoryAffinity"] {
		return -1
	}
	// 1024 is the kernel's largest MAX_NUMNODES (CONFIG_NODES_SHIFT 10).
	set, ret := device.GetMemoryAffinity(1024, nvml.AFFINITY_SCOPE_NODE)
	if ret != nvml.SUCCESS {
		return -1
	}
	node := -1
	for i, word := range set {
		if word == 0 {
			continue
		}
		if node >= 0 || bits.OnesCount(word) != 1 {
			return -1
		}
		node = i*bits.UintSize + bits.TrailingZeros(word)
	}
	return node
}

// listGPUs reads /proc/driver/nvidia/gpus, which lists the GPUs bound by the kernel
// module, in the order of NVML's indexes (by PCI address). It still has the UUID of a
// lost GPU, even one that this process was never able to read.
func (p places) listGPUs() []gpu.Device {
	if p.proc == nil {
		return nil
	}
	const dir = "/proc/driver/nvidia/gpus"
	entries, err := p.proc.ReadDir(dir)
	if err != nil {
		return nil
	}
	var list []gpu.Device
	for _, entry := range entries {
		address, err := gpu.ParsePCIAddress(entry.Name())
		if err != nil {
			continue
		}
		data, err := p.proc.ReadFile(path.Join(dir, entry.Name(), "information"), 64<<10)
		if err != nil {
			continue
		}
		d := parseInformation(string(data))
		d.PCI, d.NUMANode = address, p.numa(address)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b gpu.Device) int { return strings.Compare(string(a.PCI), string(b.PCI)) })
	return list
}

// minor returns N of the /dev/nvidiaN of a GPU as the kernel module lists it; -1 if it does not.
func (p places) minor(address gpu.PCIAddress) int {
	for _, d := range p.listGPUs() {
		if d.PCI == address {
			return d.Minor
		}
	}
	return -1
}

// parseInformation reads the "Key:  value" lines of a GPU's information file.
// There the UUID is "GPU-????????-…" until the GPU is first initialised.
func parseInformation(text string) gpu.Device {
	d := gpu.Device{Minor: -1, NUMANode: -1}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			d.Product = value
		case "GPU UUID":
			if id, err := gpu.ParseUUID(value); err == nil && !id.IsMIG() {
				d.UUID = id
			}
		case "Device Minor":
			if n, err := strconv.Atoi(value); err == nil && n >= 0 {
				d.Minor = n
			}
		}
	}
	return d
}
