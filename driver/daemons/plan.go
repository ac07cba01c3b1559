package daemons

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/daemons/supervisor"
)

// The names of the programs.
const (
	persistenced  = "nvidia-persistenced"
	gridd         = "nvidia-gridd"
	topologyd     = "nvidia-topologyd"
	nvlsm         = "nvlsm"
	fabricManager = "nv-fabricmanager"
	imex          = "nvidia-imex"
)

// StatusFile is the name of the file with the daemons' readiness. NVIDIA's driver containers
// write it to /run/nvidia/validations. The startup probe of newer GPU operators fails unless
// its content is "Ready" (gpu-driver-container, nvidia-driver; gpu-operator,
// manifests/state-driver/0400_configmap.yaml).
const StatusFile = ".driver-daemons-status"

// Files of the daemons, at the paths where other programs and NVIDIA's driver containers expect
// them.
const (
	fabricDir    = "/var/run/nvidia-fabricmanager"
	fabricSocket = fabricDir + "/fm_sm_ipc.socket" // nvlsm creates it for nv-fabricmanager
	fabricConfig = fabricDir + "/fabricmanager.cfg"
	imexDir      = "/var/run/nvidia-imex"
	imexConfig   = imexDir + "/config.cfg"
)

// How long a daemon may take to become ready.
const (
	startTimeout  = time.Minute
	fabricTimeout = 5 * time.Minute // half a minute was seen on eight H100
)

// ErrMissing is returned, wrapped, if the driver image lacks something that this machine needs.
var ErrMissing = errors.New("missing from the driver image")

// ErrNoPort is returned, wrapped, while there is no InfiniBand port through which nvlsm reaches the
// NVSwitches (the modules mlx5_core and mlx5_ib make it), or while programs cannot open the port (the
// module ib_umad). Load the modules and call NewPlan again.
var ErrNoPort = errors.New("no InfiniBand port leads to the NVSwitches yet")

// Skip is a daemon that does not run, with the reason.
type Skip struct{ Name, Why string }

// Plan lists the daemons to run, in the order of their start.
type Plan struct {
	Daemons  []supervisor.Daemon
	Skipped  []Skip
	Settings []Setting // of nv-fabricmanager
	// ResetGPUs requires a reset of all GPUs when the fabric manager has become ready: GPUs
	// with NVLink 5 keep the partitions of an earlier fabric mode.
	ResetGPUs bool
}

// NewPlan returns the daemons that a machine needs. The error wraps ErrMissing or ErrNoPort, or
// describes an invalid configuration.
func NewPlan(m Machine) (Plan, error) {
	var p Plan
	for _, add := range []func(Machine) error{p.addPersistence, p.addVGPU, p.addFabric, p.addIMEX} {
		if err := add(m); err != nil {
			return Plan{}, err
		}
	}
	return p, nil
}

// skipDaemon records that a daemon does not run, and why. It returns nil.
func (p *Plan) skipDaemon(name, why string) error {
	p.Skipped = append(p.Skipped, Skip{name, why})
	return nil
}

// missingError returns an ErrMissing: what is missing, why it is needed, and what to do.
func missingError(what, why, do string) error {
	return fmt.Errorf("%s is %w: %s; %s", what, ErrMissing, why, do)
}

const noGPU = "no GPU on the PCI bus is for NVIDIA's driver"

func (p *Plan) addPersistence(m Machine) error {
	path, ok := m.Programs[persistenced]
	switch {
	case m.GPUs == 0:
		return p.skipDaemon(persistenced, noGPU)
	case !ok:
		return p.skipDaemon(persistenced, "the image does not have it: each first use of an idle GPU takes seconds longer")
	}
	// It has no option to stay in the foreground, and reports to syslog only.
	p.Daemons = append(p.Daemons, supervisor.Daemon{
		Name: persistenced, Why: fmt.Sprintf("keeps %s initialized while nothing uses them", countText(m.GPUs, "GPU", "GPUs")),
		Path: path, Args: []string{"--persistence-mode"},
		Forks: true, PIDFile: runFile(persistenced), StartTimeout: startTimeout + time.Duration(m.GPUs)*10*time.Second,
	})
	return nil
}

// addVGPU plans the daemons of a vGPU's guest.
func (p *Plan) addVGPU(m Machine) error {
	switch path, ok := m.Programs[gridd]; {
	case m.GPUs == 0:
		_ = p.skipDaemon(gridd, noGPU)
		return p.skipDaemon(topologyd, noGPU)
	case m.License == nil:
		_ = p.skipDaemon(gridd, "no licence is configured in "+licenseFrom)
	case !ok && m.VGPU:
		return missingError(gridd, licenseFrom+" configures a licence, and a vGPU without one slows down", "build the image of the vGPU guest driver")
	case !ok:
		_ = p.skipDaemon(gridd, "the image does not have it: it is not of the vGPU guest driver, which alone takes a licence")
	default:
		d := supervisor.Daemon{Name: gridd, Why: "gets the licence of the vGPU", Path: path, Files: m.License,
			Forks: true, PIDFile: runFile(gridd), StartTimeout: startTimeout}
		if m.GriddLibs != "" {
			d.Env = []string{"LD_LIBRARY_PATH=" + m.GriddLibs}
		}
		p.Daemons = append(p.Daemons, d)
	}
	switch path, ok := m.Programs[topologyd]; {
	case !ok && m.Topology:
		return missingError(topologyd, topologyConf+" configures a virtual topology", "build the image of the vGPU guest driver, or remove virtualTopology")
	case !m.Topology && !m.VGPU:
		return p.skipDaemon(topologyd, "this is no vGPU guest driver, and "+topologyConf+" is not there")
	case !ok:
		return p.skipDaemon(topologyd, "the image does not have it")
	default:
		p.Daemons = append(p.Daemons, supervisor.Daemon{Name: topologyd, Why: "tells libraries how the vGPUs of this virtual machine are connected", Path: path,
			Forks: true, PIDFile: runFile(topologyd), StartTimeout: startTimeout})
	}
	return nil
}

// Values of FABRIC_MODE.
const (
	fabricBareMetal = "0" // or full passthrough to one virtual machine
	fabricShared    = "1" // virtual machines share the NVSwitches
)

// abortJobs is the setting by which the fabric manager aborts all CUDA jobs when it ends. The packaged file has 1;
// it has no effect on HGX H100 and later (Fabric Manager User Guide, "CUDA Jobs When the Fabric Manager Service
// Stops or is Terminated").
const abortJobs = "ABORT_CUDA_JOBS_ON_FM_EXIT"

// addFabric plans nv-fabricmanager, and before it nvlsm on machines with NVSwitches of NVLink 5.
func (p *Plan) addFabric(m Machine) error {
	settings, err := parseSettings(m.Env)
	if err != nil {
		return err
	}
	if m.NVSwitches == 0 && m.Bridges == 0 {
		why := []string{"this machine manages no NVSwitch"}
		for _, s := range settings {
			why = append(why, s.From+" has no effect")
		}
		_ = p.skipDaemon(nvlsm, "this machine manages no NVSwitch of NVLink 5")
		return p.skipDaemon(fabricManager, strings.Join(why, "; "))
	}
	switches := countText(m.NVSwitches, "NVSwitch", "NVSwitches")
	if m.Bridges > 0 {
		switches = "NVSwitches of NVLink 5 behind " + countText(m.Bridges, "bridge", "bridges")
	}
	path, ok := m.Programs[fabricManager]
	if !ok {
		return missingError(fabricManager, "this machine has "+switches+", and CUDA does not start before it has configured them", "add the package nvidia-fabricmanager of the driver's version to the image")
	}
	if m.FabricConfig == nil {
		return missingError(fabricConf, "nv-fabricmanager reads it", "add the whole package nvidia-fabricmanager to the image")
	}
	// As a daemon, which is its default, its parent exits with 0 once the NVSwitches are configured.
	own := []Setting{{Key: "DAEMONIZE", Value: "1"}}
	if !slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == abortJobs }) {
		own = append(own, Setting{Key: abortJobs, Value: "0"})
	}
	data, applied, err := replaceSettings(m.FabricConfig, append(own, settings...))
	if err != nil {
		return fmt.Errorf("%s: %w", fabricConf, err)
	}
	p.Settings = applied[1:] // without DAEMONIZE
	d := supervisor.Daemon{Name: fabricManager, Why: "configures " + switches + "; CUDA does not start before", Required: true,
		Path: path, Args: []string{"-c", fabricConfig}, Dirs: []string{fabricDir}, Files: []supervisor.File{{Path: fabricConfig, Data: data}},
		Forks: true, PIDFile: fabricDir + "/nv-fabricmanager.pid", StartTimeout: fabricTimeout}
	if lookUpKey(data, "LOG_USE_SYSLOG") != "1" {
		d.LogFile = lookUpKey(data, "LOG_FILE_NAME")
	}
	mode := lookUpKey(data, "FABRIC_MODE")
	if mode != "" && mode != fabricBareMetal {
		d.RestartArgs = []string{"--restart"} // takes over the partitions of virtual machines
	}
	if m.Bridges == 0 {
		_ = p.skipDaemon(nvlsm, "NVSwitches of NVLink 4 and older need none")
	} else {
		if err := p.addSubnetManager(m, switches); err != nil {
			return err
		}
		d.Args = append(d.Args, "-g", m.PortGUID)
		d.After = []string{nvlsm}
		p.ResetGPUs = mode == fabricShared
	}
	p.Daemons = append(p.Daemons, d)
	return nil
}

func (p *Plan) addSubnetManager(m Machine, switches string) error {
	path, ok := m.Programs[nvlsm]
	switch {
	case !ok:
		return missingError(nvlsm, "this machine has "+switches+", which nv-fabricmanager reaches through it", "add the package nvlsm to the image")
	case m.PortGUID == "":
		return fmt.Errorf("%w: this machine has %s; load mlx5_core and mlx5_ib", ErrNoPort, switches)
	case !m.UserMAD:
		return fmt.Errorf("%w: this machine has %s; load ib_umad", ErrNoPort, switches)
	}
	p.Daemons = append(p.Daemons, supervisor.Daemon{Name: nvlsm, Why: "manages the subnet of " + switches, Required: true, Path: path,
		Args:    []string{"-F", subnetConf, "-g", m.PortGUID, "--pid_file", fabricDir + "/nvlsm.pid", "-f", "stdout"},
		Dirs:    []string{fabricDir},
		PIDFile: fabricDir + "/nvlsm.pid", Ready: fabricSocket, StartTimeout: startTimeout})
	return nil
}

func (p *Plan) addIMEX(m Machine) error {
	path, ok := m.Programs[imex]
	switch {
	case m.GPUs == 0:
		return p.skipDaemon(imex, noGPU)
	case !m.IMEXNodes:
		return p.skipDaemon(imex, imexNodes+" names no nodes")
	case !ok:
		return missingError(imex, imexNodes+" names the nodes of an IMEX domain", "add the package nvidia-imex of the driver's version to the image")
	}
	// It leaves no PID file, so it stays in the foreground.
	data, _, err := replaceSettings(m.IMEXConfig, []Setting{{Key: "DAEMONIZE", Value: "0"}, {Key: "LOG_USE_SYSLOG", Value: "0"}, {Key: "LOG_FILE_NAME"}})
	if err != nil {
		return fmt.Errorf("%s: %w", imexConf, err)
	}
	p.Daemons = append(p.Daemons, supervisor.Daemon{Name: imex, Why: "lets GPUs of the nodes in " + imexNodes + " share memory", Path: path,
		Args: []string{"-c", imexConfig}, Dirs: []string{imexDir}, Files: []supervisor.File{{Path: imexConfig, Data: data}}, StartTimeout: startTimeout})
	return nil
}

func runFile(name string) string { return "/var/run/" + name + "/" + name + ".pid" }

func countText(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// String formats the plan for people, without the content of files, which may be secret.
func (p Plan) String() string {
	var b strings.Builder
	for _, d := range p.Daemons {
		need := "wanted"
		if d.Required {
			need = "required"
		}
		fmt.Fprintf(&b, "%s (%s): %s\n", d.Name, need, d.Why)
		for _, f := range d.Files {
			fmt.Fprintf(&b, "  write  %s (%d bytes)\n", f.Path, len(f.Data))
		}
		if d.Name == fabricManager {
			for _, s := range p.Settings {
				before := "was " + s.Was
				if s.Added {
					before = "not in the image's file"
				}
				why := "from " + s.From
				if s.From == "" {
					why = "so that no job ends with it"
				}
				fmt.Fprintf(&b, "         with %s=%s, %s (%s)\n", s.Key, s.Value, why, before)
			}
		}
		if d.After != nil {
			fmt.Fprintf(&b, "  after  %s\n", strings.Join(d.After, ", "))
		}
		fmt.Fprintf(&b, "  run    %s\n", strings.Join(slices.Concat(d.Env, []string{d.Path}, d.Args), " "))
		if d.RestartArgs != nil {
			fmt.Fprintf(&b, "  again  with %s besides\n", strings.Join(d.RestartArgs, " "))
		}
		fmt.Fprintf(&b, "  ready  %s, within %v\n", describeReadiness(d), d.StartTimeout)
	}
	if p.ResetGPUs {
		fmt.Fprintf(&b, "then all GPUs must be reset\n")
	}
	for _, s := range p.Skipped {
		fmt.Fprintf(&b, "no %s: %s\n", s.Name, s.Why)
	}
	return b.String()
}

func describeReadiness(d supervisor.Daemon) string {
	switch {
	case d.Forks:
		return "when it has exited with 0 and " + d.PIDFile + " names its process"
	case d.Ready != "":
		return "when " + d.Ready + " is there"
	}
	return "when it runs"
}
