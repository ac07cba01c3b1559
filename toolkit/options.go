package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/setup"
)

const header = `Make containers on this node able to use its GPUs.

Usage:
  gpu-toolkit plan         print, byte for byte, what apply would change, and why
  gpu-toolkit apply        apply once
  gpu-toolkit verify       check with the runtime that all of it is in effect
  gpu-toolkit restore      restore the original files, byte for byte (--dry-run prints the changes)
  gpu-toolkit run          apply, then watch and repair until SIGTERM, which changes nothing
  gpu-toolkit status       show what is installed, the runtime, its handlers, and who owns each file
  gpu-toolkit audit        list containers that get GPUs only by variables, and would lose them
  gpu-toolkit completion   print a script that completes command lines: bash, zsh or fish
  gpu-toolkit version      print the version

Examples:
  gpu-toolkit plan
  gpu-toolkit run --host-root /host
  gpu-toolkit apply --driver-root /run/nvidia/driver --cdi-output-dir /etc/cdi
  gpu-toolkit apply --runtime-restart-mode systemd                  # turn CDI on where it is off
  gpu-toolkit apply --runtime-restart-mode systemd --nvidia-runtime-name nvidia
  gpu-toolkit status -o json

The container runtime's configuration is changed only if --runtime-restart-mode sets how
the runtime may load it, and only if the runtime lacks a wanted ability.
All paths are the host's, except --host-root and the programs to install.

Flags; if a flag is not set, the first variable in brackets that is set is used.
CONTAINERD_CONFIG, CONTAINERD_SOCKET, DOCKER_CONFIG, DOCKER_SOCKET, CRIO_CONFIG and
CRIO_SOCKET are like --runtime-config and --runtime-socket for one runtime. Further
variables and flags of NVIDIA's toolkit are accepted; the log and the state name those
that have no effect:
`

const footer = `
Exit codes: 0 done; 1 failed, or verify found a problem, or audit a container that would
lose its GPUs, with the reason on standard error; 2 incorrect use.
`

var commands = []string{"plan", "apply", "verify", "restore", "run", "status", "audit"}

// others are other names of commands.
var others = map[string]string{"uninstall": "restore"}

type options struct {
	command       string
	config        setup.Config
	dryRun        bool
	listen        string
	logFormat     string
	output        string
	restart       string
	workloads     string
	help, version bool
	flags         *pflag.FlagSet
	noConfig      bool              // --no-runtime-config
	variables     map[string]string // the variable of each flag that comes from the environment
}

func (o *options) usage() string { return header + program.FlagHelp(o.flags) + footer }

func parse(args []string) (*options, error) {
	o := &options{flags: pflag.NewFlagSet("gpu-toolkit", pflag.ContinueOnError), config: setup.Config{Shim: request.DefaultSettings()}}
	f := o.flags
	f.SortFlags = false
	f.StringVar(&o.config.HostRoot, "host-root", "/", "directory where the host's file system is mounted")
	f.StringVar(&o.config.DriverRoot, "driver-root", "", "directory of the host with the driver's files (default "+setup.ContainerRoot+" if a driver is there, otherwise /)")
	f.StringVar(&o.config.DevRoot, "dev-root", "", "directory of the host with dev/nvidia* (default the driver root if it has them, otherwise /)")
	f.StringVar(&o.config.CDIDir, "cdi-output-dir", cdi.DynamicDir, "directory of the host for the CDI specs")
	f.StringVar(&o.config.InstallDir, "toolkit-install-dir", "/usr/local/nvidia/gpuready", "directory of the host for the programs, the install manifest and the original files; if /usr/local is read-only, name another one")
	f.StringVar(&o.config.StateDir, "state-dir", "/run/nvidia/gpuready", "directory of the host for the states of all components")
	f.StringVar(&o.config.HookProgram, "hook-program", "", "gpu-cdi-hook to install (default next to this program)")
	f.StringVar(&o.config.Runtime.Socket, "runtime-socket", "", "the container runtime's socket on the host (default the first of those of containerd, CRI-O, k3s, RKE2, k0s and MicroK8s)")
	f.StringVar(&o.config.NRISocket, "nri-socket", nri.DefaultSocket, "the container runtime's socket on the host for NRI plugins (run only)")
	f.StringVar(&o.config.Namespace, "namespace", "", "namespace whose agents get the GPUs by NRI (run only); empty for none")
	f.StringVar(&o.workloads, "nri-workload-namespaces", "", "comma-separated namespaces whose containers get by NRI the GPUs that they request by NVIDIA_VISIBLE_DEVICES, mounts or annotations (run only); empty for none")
	r := &o.config.Runtime
	f.StringVar(&r.Runtime, "runtime", "", "the container runtime: containerd, docker or crio (default the one that is found)")
	f.StringVar(&r.Config, "runtime-config", "", "the container runtime's configuration file (default that of this distribution)")
	f.StringVar(&r.DropIn, "runtime-drop-in-config", "", "the toolkit's own file, which the container runtime reads in addition (default that of this distribution)")
	f.StringVar(&o.restart, "runtime-restart-mode", "", "how the container runtime may load a new configuration: auto, in this distribution's way; systemd, by a restart of its unit; signal, by a reload (Docker only); none, a person restarts it; empty: its configuration is not touched")
	f.BoolVar(&o.config.CDI, "cdi-enabled", true, "make the container runtime resolve CDI names")
	f.StringVar(&o.config.Handler, "nvidia-runtime-name", "", "name of a handler for gpu-oci-runtime that is added to the container runtime; empty for none")
	f.BoolVar(&o.config.HandlerDefault, "nvidia-runtime-set-as-default", false, "make that handler the default for pods that name none")
	f.BoolVar(&o.config.Shim.AcceptEnvvar, "accept-nvidia-visible-devices-envvar-when-unprivileged", false, "the handler, and NRI in the namespaces of --nri-workload-namespaces, give unprivileged containers the GPUs in NVIDIA_VISIBLE_DEVICES, which an image can set by itself")
	f.BoolVar(&o.config.Shim.AcceptVolumeMounts, "accept-nvidia-visible-devices-as-volume-mounts", false, "the handler gives containers the GPUs named by mounts of /dev/null below /var/run/nvidia-container-devices")
	f.StringVar(&o.config.ShimProgram, "oci-runtime-program", "", "gpu-oci-runtime to install (default next to this program)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes and make none")
	f.StringVarP(&o.output, "output", "o", "table", "table or json (status, verify, audit)")
	f.StringVar(&o.listen, "listen", ":9403", "address of /healthz, /readyz and /metrics of run; empty for none")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.BoolVarP(&o.help, "help", "h", false, "print this")
	f.BoolVar(&o.version, "version", false, "print the version")
	f.BoolVar(&o.noConfig, "no-runtime-config", false, "the same as an empty --runtime-restart-mode, which it overrides")
	f.Lookup("no-runtime-config").Hidden = true
	describe(f)
	addReferenceFlags(f)
	if err := cmdline.Parse(f, args); err != nil {
		return nil, err
	}
	if o.help || o.version {
		return o, nil
	}
	var err error
	if o.variables, o.config.Unserved, err = fromEnvironment(f); err != nil {
		return nil, err
	}
	o.config.Unserved = append(o.config.Unserved, unfollowed(f, os.Environ())...)
	err = o.complete()
	slices.SortFunc(o.config.Unserved, func(a, b nodestate.Setting) int { return strings.Compare(a.Name, b.Name) })
	return o, err
}

// leaveOut records that a setting has no effect.
func (o *options) leaveOut(name, why string) {
	o.config.Unserved = append(o.config.Unserved, nodestate.Setting{Name: name, Message: why})
}

// fromVariable reports whether a flag's value comes from the environment, and returns the
// variable with its value. A variable is often a line of a file that was written for NVIDIA's
// toolkit; somebody chose a flag for this one.
func (o *options) fromVariable(flag string) (string, bool) {
	name, is := o.variables[flag]
	return name + "=" + os.Getenv(name), is
}

// complete checks the options and sets those that depend on others.
func (o *options) complete() error {
	given := o.flags.Arg(0)
	o.command = cmp.Or(others[given], given)
	switch {
	case given == "":
		return cmdline.NoCommand(append(slices.Clone(commands), "completion", "help", "version"))
	case !slices.Contains(commands, o.command):
		return cmdline.UnknownCommand(given, append(slices.Clone(commands), "completion", "help", "version"))
	case o.flags.NArg() > 1:
		return fmt.Errorf("%s takes flags only, not %q", given, o.flags.Arg(1))
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format=%s: it is text or json", o.logFormat)
	}
	for name, p := range map[string]*string{
		"host-root": &o.config.HostRoot, "driver-root": &o.config.DriverRoot, "dev-root": &o.config.DevRoot,
		"cdi-output-dir": &o.config.CDIDir, "toolkit-install-dir": &o.config.InstallDir, "state-dir": &o.config.StateDir,
		"nri-socket": &o.config.NRISocket,
	} {
		if *p == "" && (name == "driver-root" || name == "dev-root") {
			continue
		}
		if !path.IsAbs(*p) {
			return fmt.Errorf("--%s=%s: it must be an absolute path", name, *p)
		}
		*p = path.Clean(*p)
	}
	if o.config.InstallDir == "/" || o.config.CDIDir == "/" {
		return errors.New("--toolkit-install-dir and --cdi-output-dir cannot be the root directory")
	}
	if err := o.completeRuntime(); err != nil {
		return err
	}
	if err := o.parseNamespaces(); err != nil {
		return err
	}
	switch {
	case !o.dryRun:
	case o.command == "run" || o.command == "apply":
		o.command = "plan"
	case o.command != "plan" && o.command != "restore":
		return fmt.Errorf("--dry-run is for apply, run and restore; %s changes nothing", o.command)
	}
	for flag, program := range map[string]struct {
		at   *string
		name string
	}{"hook-program": {&o.config.HookProgram, setup.HookName}, "oci-runtime-program": {&o.config.ShimProgram, setup.ShimName}} {
		if *program.at != "" {
			continue
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("path of this program: %w; set --%s", err, flag)
		}
		*program.at = filepath.Join(filepath.Dir(self), program.name)
	}
	return nil
}

// completeRuntime completes the options of the container runtime.
func (o *options) completeRuntime() error {
	r := &o.config.Runtime
	for name, p := range map[string]string{"--runtime-socket": r.Socket, "--runtime-config": r.Config, "--runtime-drop-in-config": r.DropIn} {
		if err := checkHostPath(name, p); err != nil {
			return err
		}
	}
	for name, to := range map[string]*string{
		"CONTAINERD_CONFIG": &r.ContainerdConfig, "CONTAINERD_SOCKET": &r.ContainerdSocket,
		"DOCKER_CONFIG": &r.DockerConfig, "DOCKER_SOCKET": &r.DockerSocket,
		"CRIO_CONFIG": &r.CRIOConfig, "CRIO_SOCKET": &r.CRIOSocket,
	} {
		*to = os.Getenv(name)
		if err := checkHostPath(name, *to); err != nil {
			return err
		}
	}
	if err := o.completeRestart(); err != nil {
		return err
	}
	if err := o.completeHandler(); err != nil {
		return err
	}
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("--output=%s: it is table or json", o.output)
	}
	for _, name := range r.Unused() {
		o.leaveOut(name, "RUNTIME="+r.Runtime+" is set")
	}
	_, err := configure.Sockets(*r)
	return err
}

// completeRestart completes how the container runtime may load a new configuration.
func (o *options) completeRestart() error {
	no := o.noConfig
	if value := os.Getenv("NO_RUNTIME_CONFIG"); value != "" && !no {
		var err error
		if no, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("NO_RUNTIME_CONFIG=%s: it is true or false", value)
		}
	}
	variable, is := o.fromVariable("runtime-restart-mode")
	switch {
	case !slices.Contains([]string{"", "auto", "systemd", "signal", "none"}, o.restart):
		return fmt.Errorf("--runtime-restart-mode=%s: it is auto, systemd, signal, none, or empty", o.restart)
	case o.restart == "":
	case no && is:
		o.leaveOut(variable, "NO_RUNTIME_CONFIG=true forbids changes of the container runtime's configuration")
	case no:
		return fmt.Errorf("NO_RUNTIME_CONFIG=true and --runtime-restart-mode=%s: the first forbids changes of the container runtime's configuration, the second allows them; leave one of them out", o.restart)
	case o.restart == "auto":
		o.config.Configure = true
	default:
		o.config.Configure, o.config.Runtime.RestartMode = true, o.restart
		kind, _, _ := o.config.Runtime.Kind() // an error is reported by completeRuntime
		if o.restart == "signal" && kind != runtime.Docker {
			o.leaveOut("RUNTIME_RESTART_MODE=signal", "Docker alone loads handlers on a signal; containerd, which ends on it, and CRI-O are restarted in the distribution's way")
		}
	}
	return nil
}

// completeHandler completes the options of our handler.
func (o *options) completeHandler() error {
	c := &o.config
	name, byVariable := o.fromVariable("nvidia-runtime-name")
	switch {
	case c.Handler == "":
	case !handlerName.MatchString(c.Handler):
		return fmt.Errorf("--nvidia-runtime-name=%s: a name has lower-case letters, digits and dashes, as a RuntimeClass's handler", c.Handler)
	case c.Configure:
	case byVariable:
		o.leaveOut(name, "no handler is added, since the container runtime's configuration may not be changed; where the runtime resolves CDI names, containers need none. To have it added, and the runtime restarted once, set RUNTIME_RESTART_MODE=auto")
		c.Handler = ""
	default:
		return errors.New("--nvidia-runtime-name needs --runtime-restart-mode, which sets how the container runtime may load the handler; auto is this distribution's way")
	}
	if !c.HandlerDefault || c.Handler != "" {
		return nil
	}
	variable, byVariable := o.fromVariable("nvidia-runtime-set-as-default")
	if !byVariable {
		return errors.New("--nvidia-runtime-set-as-default needs --nvidia-runtime-name")
	}
	o.leaveOut(variable, "no handler is added that could be the default; NVIDIA_RUNTIME_NAME names one")
	c.HandlerDefault = false
	return nil
}

// parseNamespaces parses the namespaces whose workloads may request GPUs.
func (o *options) parseNamespaces() error {
	for name := range strings.SplitSeq(o.workloads, ",") {
		if name = strings.TrimSpace(name); name == "" || slices.Contains(o.config.WorkloadNamespaces, name) {
			continue
		}
		if !handlerName.MatchString(name) {
			return fmt.Errorf("--nri-workload-namespaces=%s: %q is no namespace; each is named exactly, without patterns", o.workloads, name)
		}
		o.config.WorkloadNamespaces = append(o.config.WorkloadNamespaces, name)
	}
	return nil
}

// handlerName matches the names that Kubernetes accepts for a handler (RuntimeClass, a DNS
// label) and for a namespace.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
