// Package daemons plans which daemons of NVIDIA's driver run on a machine, and how, in a
// driver container without a shell: nvidia-persistenced, nvidia-gridd,
// nvidia-topologyd, nvlsm, nv-fabricmanager and nvidia-imex.
//
// ReadMachine describes the machine and the image. NewPlan decides, from that description alone,
// which daemons run and how. Package supervisor runs them.
package daemons

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/driver/daemons/supervisor"
	"github.com/gpuready/gpuready/internal/host"
)

// Machine describes a node and its driver image, as far as daemons depend on them. All
// paths are relative to the image.
type Machine struct {
	GPUs       int    // on the PCI bus, except those bound to another driver
	NVSwitches int    // likewise; NVLink 4 and older
	Bridges    int    // PCI functions that lead to the NVSwitches of NVLink 5
	PortGUID   string // "0x…", of the bridges' port for the subnet manager; "": there is none yet
	UserMAD    bool   // whether ib_umad is loaded

	Programs     map[string]string // paths by name, for those in the image
	FabricConfig []byte            // of the image; nil: there is none
	VGPU         bool              // DRIVER_TYPE=vgpu
	License      []supervisor.File // of a vGPU, to be written where nvidia-gridd reads them
	GriddLibs    string            // folder of the libraries that come with nvidia-gridd; "": none
	Topology     bool              // whether a virtual topology is configured
	IMEXNodes    bool              // whether the nodes of an IMEX domain are configured
	IMEXConfig   []byte            // of the image; nil: there is none
	Env          []string          // of this process; NVFM_CONFIG_* counts
}

// Files that are read, and (…To) places where the plan writes what ReadMachine has read. The GPU operator
// mounts a user's configuration in /drivers and /etc/nvidia.
const (
	licenseFrom  = "/drivers/gridd.conf"
	licenseTo    = "/etc/nvidia/gridd.conf"
	tokensFrom   = "/drivers/ClientConfigToken"
	tokensTo     = "/etc/nvidia/ClientConfigToken"
	topologyConf = "/etc/nvidia/nvidia-topologyd.conf"
	fabricConf   = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
	subnetConf   = "/usr/share/nvidia/nvlsm/nvlsm.conf"
	imexConf     = "/etc/nvidia-imex/config.cfg"
	imexNodes    = "/etc/nvidia-imex/nodes_config.cfg"

	maxFile = 1 << 20
	maxVPD  = 64 << 10 // vital product data is at most 32 KiB (PCI Local Bus Specification 3.0, appendix I)
)

// programDirs are searched for programs, in this order.
var programDirs = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/opt/nvidia/nvlsm/sbin"}

// griddLibs lists the folders in which NVIDIA's vGPU packages install nvidia-gridd's libraries.
var griddLibs = []string{"/usr/lib/x86_64-linux-gnu/nvidia/gridd", "/usr/lib/aarch64-linux-gnu/nvidia/gridd", "/usr/lib64/nvidia/gridd"}

// ReadMachine reads programs and their default configurations from image, the root of the driver image,
// and /sys and the user's configuration from own, the root of the container in which it runs. env is the
// container's environment.
func ReadMachine(image, own *host.Root, env []string) (Machine, error) {
	m := Machine{Programs: map[string]string{}, Env: env, VGPU: slices.Contains(env, "DRIVER_TYPE=vgpu")}
	if err := m.readPCI(own); err != nil {
		return m, err
	}
	_, err := own.Stat("/sys/class/infiniband_mad")
	m.UserMAD = err == nil
	for _, name := range []string{persistenced, gridd, topologyd, nvlsm, fabricManager, imex} {
		for _, dir := range slices.Backward(programDirs) { // the first of them wins
			file := path.Join(dir, name)
			if info, err := image.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				m.Programs[name] = file
			}
		}
	}
	for _, dir := range slices.Backward(griddLibs) {
		if info, err := image.Stat(dir); err == nil && info.IsDir() {
			m.GriddLibs = dir
		}
	}
	_, err = own.Stat(topologyConf)
	m.Topology = err == nil
	return m, m.readConfigs(image, own)
}

func (m *Machine) readConfigs(image, own *host.Root) (err error) {
	if m.FabricConfig, err = readFile(image, fabricConf); err != nil {
		return err
	}
	if m.IMEXConfig, err = readFile(image, imexConf); err != nil {
		return err
	}
	nodes, err := readFile(own, imexNodes)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(nodes)) {
		line = strings.TrimSpace(line)
		m.IMEXNodes = m.IMEXNodes || line != "" && line[0] != '#'
	}
	license, err := readFile(own, licenseFrom)
	if err != nil || license == nil {
		return err
	}
	m.License = []supervisor.File{{Path: licenseTo, Data: license}}
	tokens, err := own.Glob(tokensFrom, "[^.]*")
	if err != nil {
		return fmt.Errorf("list %s: %w", tokensFrom, err)
	}
	for _, token := range tokens {
		data, err := readFile(own, token)
		if err != nil {
			return err
		}
		m.License = append(m.License, supervisor.File{Path: path.Join(tokensTo, path.Base(token)), Data: data})
	}
	return nil
}

// readFile returns nil for a file that is not there.
func readFile(root *host.Root, name string) ([]byte, error) {
	data, err := root.ReadFile(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// readPCI counts the devices that determine whether a fabric manager is needed.
//
// NVSwitches up to NVLink 4 are PCI devices of NVIDIA, class "bridge, other". Those of
// NVLink 5 (HGX B200, B300) are not on the bus: ConnectX-7 functions lead to them, which
// differ from network cards by the field SMDL=SW_MNG in their vital product data (Fabric
// Manager User Guide, "Additional Steps for NVIDIA HGX B200/B300 Systems"). The trays of
// a GB200 rack have neither, and no fabric manager: it runs on the rack's switches.
func (m *Machine) readPCI(root *host.Root) error {
	entries, err := root.ReadDir(host.PCIDevices)
	if err != nil {
		return fmt.Errorf("look for GPUs and NVSwitches: %w; mount /sys", err)
	}
	for _, e := range entries {
		dir := path.Join(host.PCIDevices, e.Name())
		vendor, class := readAttribute(root, dir, "vendor"), readAttribute(root, dir, "class")
		switch {
		case vendor == "0x10de" && strings.HasPrefix(class, "0x0680"):
			if isForNVIDIA(root, dir) {
				m.NVSwitches++
			}
		case vendor == "0x10de" && (strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")):
			if isForNVIDIA(root, dir) {
				m.GPUs++
			}
		case vendor == "0x15b3" && strings.HasPrefix(class, "0x0207"):
			vpd, err := root.ReadFile(path.Join(dir, "vpd"), maxVPD)
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("look for bridges to NVSwitches: %w; run as root", err)
			}
			// Any other error means no bridge: many network cards do not let it be read.
			if err != nil || !strings.Contains(string(vpd), "SW_MNG") {
				continue
			}
			m.Bridges++
			if m.PortGUID == "" {
				m.PortGUID = findPort(root, dir)
			}
		}
	}
	return nil
}

// isForNVIDIA reports whether a device is bound to NVIDIA's driver, or to none yet. Devices of other drivers
// do not count: vfio-pci has those of virtual machines, forcedeth has old network cards, which have the
// NVSwitches' PCI class.
func isForNVIDIA(root *host.Root, dir string) bool {
	driver, err := root.Readlink(path.Join(dir, "driver"))
	return err != nil || strings.HasPrefix(path.Base(driver), "nvidia")
}

// smDisabled is the bit IsSMDisabled of a port's CapabilityMask (InfiniBand Architecture
// Specification, PortInfo): no subnet manager may run on it. Some functions of a bridge have this bit.
const smDisabled = 1 << 10

// findPort returns the GUID of a device's first port on which a subnet manager may run.
func findPort(root *host.Root, dir string) string {
	links, _ := root.Glob(path.Join(dir, "infiniband"), "*")
	for _, link := range links {
		ports, _ := root.Glob(path.Join(link, "ports"), "*")
		for _, port := range ports {
			mask, err := strconv.ParseUint(readAttribute(root, port, "cap_mask"), 0, 32)
			if guid := parseGID(readAttribute(root, port, "gids/0")); err == nil && mask&smDisabled == 0 && guid != "" {
				return guid
			}
		}
	}
	return ""
}

// parseGID returns the port's GUID, the second half of a GID in the format of sysfs; "" if it
// is not set.
func parseGID(gid string) string {
	raw, err := hex.DecodeString(strings.ReplaceAll(gid, ":", ""))
	if err != nil || len(raw) != 16 || binary.BigEndian.Uint64(raw[8:]) == 0 {
		return ""
	}
	return fmt.Sprintf("0x%x", raw[8:])
}

func readAttribute(root *host.Root, dir, name string) string {
	data, err := root.ReadFile(path.Join(dir, name), 4096)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
