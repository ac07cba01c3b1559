package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// oracle is the variable that turns this test's program into NVIDIA's generator, for the
// driver root that it names. It needs its own process, because a process loads one
// libnvidia-ml, and nvcdi reads the /proc and /sys of the machine.
const oracle = "GPUREADY_TEST_NVCDI_ROOT"

// oracleLibraries is the variable that has it generate only the mounts of libraries. It holds the driver's version.
const oracleLibraries = "GPUREADY_TEST_NVCDI_LIBRARIES"

func TestMain(m *testing.M) {
	root := os.Getenv(oracle)
	if root == "" {
		os.Exit(m.Run())
	}
	print := generate
	if os.Getenv(oracleLibraries) != "" {
		print = generateLibraries
	}
	if err := print(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// modes maps our kinds to the corresponding modes of nvcdi.
var modes = map[string]nvcdi.Mode{
	cdi.KindNVIDIA: nvcdi.ModeNvml, cdi.KindManagement: nvcdi.ModeManagement, cdi.KindGDS: nvcdi.ModeGds, cdi.KindMOFED: nvcdi.ModeMofed,
	cdi.KindGDRCopy: nvcdi.ModeGdrcopy, cdi.KindNVSwitch: nvcdi.ModeNvswitch, cdi.KindIMEX: nvcdi.ModeImex,
}

// generate prints nvcdi's specifications for a driver root, as JSON, by our kinds.
func generate(root string) error {
	// In a mount namespace of its own: the simulated driver's for the machine's.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for at, from := range map[string]string{"/proc/driver": root + "/proc/driver", "/sys/bus/pci/devices": root + "/sys/bus/pci/devices"} {
		if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	if parameter := root + firmwareParameter; unix.Access(parameter, unix.R_OK) == nil {
		if err := unix.Mount(parameter, firmwareParameter, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", firmwareParameter, err)
		}
	}
	all := map[string]*specs.Spec{}
	for kind, mode := range modes {
		var namers []nvcdi.DeviceNamer
		for _, strategy := range []string{nvcdi.DeviceNameStrategyUUID, nvcdi.DeviceNameStrategyIndex} {
			namer, err := nvcdi.NewDeviceNamer(strategy)
			if err != nil {
				return err
			}
			namers = append(namers, namer)
		}
		lib, err := nvcdi.New(nvcdi.WithMode(mode), nvcdi.WithDriverRoot(root), nvcdi.WithDeviceNamers(namers...),
			nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils), nvcdi.WithLogger(quiet{}))
		if err != nil {
			return err
		}
		generated, err := lib.GetSpec()
		if err != nil {
			fmt.Fprintln(os.Stderr, mode, err)
			continue // there is no device of the kind
		}
		all[kind] = generated.Raw()
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// generateLibraries prints the edits that all agents get, as JSON. It needs no GPU, and prints none if there is no driver.
func generateLibraries(root string) error {
	driver := &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return os.Getenv(oracleLibraries), nvml.SUCCESS },
	}
	lib, err := nvcdi.New(nvcdi.WithMode(nvcdi.ModeManagement), nvcdi.WithDriverRoot(root), nvcdi.WithNvmlLib(driver),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils), nvcdi.WithLogger(quiet{}))
	if err != nil {
		return err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return json.NewEncoder(os.Stdout).Encode(specs.ContainerEdits{})
	}
	return json.NewEncoder(os.Stdout).Encode(edits.ContainerEdits)
}

type quiet struct{}

func (quiet) Debugf(string, ...any)   {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Tracef(string, ...any)   {}

// explained lists all differences between nvcdi's specifications and ours for the same
// driver: "-" is only in nvcdi's, "+" only in ours.
var explained = []struct{ what, why string }{
	// The form of a device node.
	{`^[-+] .*: (device \S+ )?attributes .*$`, "the runtime looks up numbers, modes and groups when it makes the container: they change when the driver is loaded anew, and groups need a newer version of CDI; and nobody needs to make nodes (rwm)"},
	// The form of a hook.
	{`^- .* environment NVIDIA_CTK_DEBUG=false$`, "its hook program reads it, ours does not"},
	{`^\+ .* environment PATH=/usr/bin:/bin$`, "an environment of our own, so that a hook never has the container's"},
	// The devices.
	{`^\+ nvidia.com/gpu: device (GPU-\S+|[0-9]+) node /dev/(nvidia[0-9]+|nvidia-caps/nvidia-cap[0-9]+) `, "a GPU in MIG mode is a device as well: who asks for it is given all of its parts"},
	{`^\+ nvidia.com/gpu: name (GPU-\S+|[0-9]+)$`, "the same"},
	{`^\+ nvidia.com/(gpu|imex-channel): name all$`, "nvidia-ctk adds it to what nvcdi generates"},
	{`^\+ nvidia.com/(gpu|imex-channel): device all `, "the same"},
	{`^- nvidia.com/(gds|mofed|gdrcopy|nvswitch|imex-channel): env NVIDIA_VISIBLE_DEVICES=void$`, "it writes the kind also where nothing of it is there"},
	{`^- nvidia.com/(gds|mofed|gdrcopy|nvswitch): name all$`, "the same: a container that asks for it would be started without"},
	// Links.
	{`^- .* create-symlinks argument \.\./(card|renderD)[0-9]+::/driver/dev/dri/by-path/`, "its links are made where the host has them, below the driver's root, not where a container looks for them"},
	{`^\+ .* create-symlinks argument \.\./(card|renderD)[0-9]+::/dev/dri/by-path/`, "ours are made where a container looks for them"},
	{`^\+ .*: hook create-symlinks argument lib\S+\.so\.\S+::/\S+/lib[^/]+\.so\.1$`, "nvcdi makes those that the host has, and has ldconfig make the others; no ldconfig is run here"},
	// The edits for agents.
	{`^\+ management.gpuready.io/gpu: device all mount /driver(/dev)? from /driver(/dev)? ro,nosuid,nodev,bind,private$`, "agents look at the driver as it is on the host; they mount nothing of it themselves"},
	{`^- management.gpuready.io/gpu: device all node /dev/nvidia-caps-imex-channels/`, "no agent of ours uses them, and channels that come and go would have all agents started anew"},
	{`^\+ management.gpuready.io/gpu: mount /((etc|usr/share)/(vulkan|glvnd|egl|X11|nvidia|OpenCL)/|usr/bin/nvidia-xconfig )`, "agents are given the same files of the driver as everybody, graphics included: one list, and one generation"},
	{`^\+ management.gpuready.io/gpu: mount /usr/lib/\S+/(libnvidia-egl-\S+|nvidia/xorg/\S+) `, "the same"},
	{`^\+ management.gpuready.io/gpu: hook create-symlinks argument \S+::/usr/lib/\S+/(nvidia-drm_gbm|libglxserver_nvidia|libnvidia-vulkan-producer)\.so$`, "the same"},
	// Hooks.
	{`^- nvidia.com/gpu: hook createContainer update-application-profile$`, "ours is only where the driver has the libraries that read profiles"},
	{`^- management.gpuready.io/gpu: hook (createContainer enable-cuda-compat|enable-cuda-compat argument .*)$`, "agents need the driver as it is on the host"},
	{`^- nvidia.com/gpu: device \S+ hook (createRuntime apply-cuda-memory-limits|apply-cuda-memory-limits argument \S+)$`, "it limits a container's GPU memory by the container's own environment, which a container must not choose here"},
	// Sockets.
	{`^- .*: mount /run/nvidia-(persistenced|fabricmanager)/socket from \S+ nosuid,nodev,rbind,rprivate,noexec$`, "with it a container's root could change the mode and the owner of the host's socket"},
	{`^\+ .*: mount /run/nvidia-(persistenced|fabricmanager)/socket from \S+ ro,nosuid,nodev,rbind,rprivate,noexec$`, "a program can connect to it all the same"},
}

// TestEveryDifferenceToNvcdiIsExplained compares both on every simulated machine.
func TestEveryDifferenceToNvcdiIsExplained(t *testing.T) {
	applied := map[string]bool{}
	whole := true
	for _, p := range profiles {
		whole = t.Run(p.name, func(t *testing.T) {
			dir := simulate(t, p.profile, p.layout, p.rich)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), oracle+"="+dir+"/driver", "PATH=/usr/sbin:/usr/bin", "XDG_DATA_DIRS=")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			require.NoError(t, err, stderr.String())
			var theirs map[string]*specs.Spec
			require.NoError(t, json.Unmarshal(out, &theirs))
			require.NotNil(t, theirs[cdi.KindNVIDIA], stderr.String())
			_, ours := written(t, dir)
			var unexplained []string
			for kind := range modes {
				for _, d := range differences(facts(kind, theirs[kind], dir), facts(kind, ours[kind], "")) {
					if e := explain(d); e != "" {
						applied[e] = true
					} else {
						unexplained = append(unexplained, d)
					}
				}
			}
			slices.Sort(unexplained)
			require.Empty(t, unexplained, "differences that nobody explained:\n%s", strings.Join(unexplained, "\n"))
		}) && whole
	}
	if !whole || len(applied) == 0 { // or skipped
		return
	}
	for _, e := range explained {
		require.True(t, applied[e.what], "no machine differs as %s says any more: take the explanation away", e.what)
	}
}

func explain(difference string) string {
	for _, e := range explained {
		if regexp.MustCompile(e.what).MatchString(difference) {
			return e.what
		}
	}
	return ""
}

// facts returns the content of a specification, one fact per line. In one for a host in a
// directory, host paths begin with base.
func facts(kind string, s *specs.Spec, base string) map[string]bool {
	all := map[string]bool{}
	if s == nil {
		return all
	}
	add := func(format string, args ...any) { all[kind+": "+fmt.Sprintf(format, args...)] = true }
	edits := func(who string, e specs.ContainerEdits) {
		for _, v := range e.Env {
			add("%senv %s", who, v)
		}
		for _, n := range e.DeviceNodes {
			from := strings.TrimPrefix(n.HostPath, base)
			add("%snode %s from %s", who, n.Path, from)
			mode := ""
			if n.FileMode != nil {
				mode = fmt.Sprintf(" %o", *n.FileMode)
			}
			add("%sattributes %s %s %d:%d%s", who, n.Path, n.Permissions, n.Major, n.Minor, mode)
		}
		for _, m := range e.Mounts {
			add("%smount %s from %s %s", who, m.ContainerPath, strings.TrimPrefix(m.HostPath, base), strings.Join(m.Options, ","))
		}
		for _, h := range e.Hooks {
			each, ok := joined.Hooks(h.Args[1:]) // ours is one process for all; what they are is compared
			if !ok {
				add("%shook of unknown form %s", who, strings.Join(h.Args, " "))
			}
			for _, args := range each {
				add("%shook %s %s", who, h.HookName, args[0])
				add("%shook %s environment %s", who, args[0], strings.Join(h.Env, " "))
				for _, a := range args[1:] {
					if !strings.HasPrefix(a, "--") || strings.Contains(a, "=") {
						add("%shook %s argument %s", who, args[0], strings.ReplaceAll(a, base, ""))
					}
				}
			}
		}
	}
	edits("", s.ContainerEdits)
	for _, d := range s.Devices {
		add("name %s", d.Name)
		edits("device "+d.Name+" ", d.ContainerEdits)
	}
	return all
}

func differences(theirs, ours map[string]bool) []string {
	var list []string
	for f := range theirs {
		if !ours[f] {
			list = append(list, "- "+f)
		}
	}
	for f := range ours {
		if !theirs[f] {
			list = append(list, "+ "+f)
		}
	}
	return list
}
