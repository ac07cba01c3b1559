package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/injection"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

const defaultStateDir = "/run/nvidia/gpuready"

// options are the flags, whether they come from the command line, the
// environment or the configuration file.
type options struct {
	version, dryRun bool
	output          string

	configFile      string
	kubeletSocket   string
	kubeletTimeout  time.Duration
	hostRoot        string
	driverRoot      string
	devRoot         string
	stateDir        string
	listen          string
	logFormat       string
	failOnInitError bool

	// What the reference knows and one value of which is served.
	migStrategy        string
	deviceListStrategy []string
	deviceIDStrategy   string
	passDeviceSpecs    bool
}

// environment names the variable of each flag. DEVICE_LIST_STRATEGY and its
// like are the reference's.
var environment = map[string]string{
	"config-file":          "CONFIG_FILE",
	"kubelet-socket":       "KUBELET_SOCKET",
	"kubelet-timeout":      "KUBELET_TIMEOUT",
	"host-root":            "HOST_ROOT",
	"driver-root":          "NVIDIA_DRIVER_ROOT",
	"dev-root":             "NVIDIA_DEV_ROOT",
	"state-dir":            "GPUREADY_STATE_DIR",
	"listen":               "LISTEN_ADDRESS",
	"log-format":           "LOG_FORMAT",
	"fail-on-init-error":   "FAIL_ON_INIT_ERROR",
	"mig-strategy":         "MIG_STRATEGY",
	"device-list-strategy": "DEVICE_LIST_STRATEGY",
	"device-id-strategy":   "DEVICE_ID_STRATEGY",
	"pass-device-specs":    "PASS_DEVICE_SPECS",
}

// aliases are flags that the reference spells in another way.
var aliases = map[string]string{
	"nvidia-driver-root": "driver-root",
	"nvidia-dev-root":    "dev-root",
}

const help = `gpu-device-plugin advertises this node's NVIDIA GPUs to the kubelet as
nvidia.com/gpu and gives them to containers by their CDI names.

Usage:
  gpu-device-plugin [flags]
  gpu-device-plugin wait [flags]   wait until containers are given the GPUs (see wait --help)

Examples:
  gpu-device-plugin
  gpu-device-plugin --dry-run                # what would be advertised
  gpu-device-plugin --dry-run -o json
  gpu-device-plugin --driver-root /opt/driver --listen=

Flags (command line before environment before configuration file):
%s
Exit codes:
  0  ended on SIGTERM or SIGINT, or to be started again in a container that is given
     the GPUs as they are now, or --dry-run, --help, --version
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
`

func (o *options) flags(usage io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet("gpu-device-plugin", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.configFile, "config-file", "", "configuration `file`, version: v1, of the NVIDIA device plugin")
	f.StringVar(&o.kubeletSocket, "kubelet-socket", "/var/lib/kubelet/device-plugins/kubelet.sock", "the kubelet's registration `socket`; ours is made beside it")
	f.DurationVar(&o.kubeletTimeout, "kubelet-timeout", 0, "end with an error when there are devices and no kubelet for this long; 0: wait for ever")
	f.StringVar(&o.hostRoot, "host-root", "/", "`folder` where the host's file system is seen")
	f.StringVar(&o.driverRoot, "driver-root", "", "host `path` of the driver's root (default: "+driver.Containerised+" where it holds a driver, else /)")
	f.StringVar(&o.devRoot, "dev-root", "", "host `path` of the device nodes' root; accepted for the reference's sake, NVML finds them itself")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "host `path` of the components' states")
	f.StringVar(&o.listen, "listen", ":9402", "`address` for /healthz, /readyz, /metrics, empty: none")
	f.StringVar(&o.logFormat, "log-format", "text", "log as text or json")
	f.BoolVar(&o.failOnInitError, "fail-on-init-error", true, "end, rather than wait, when the driver is there and does not work")
	f.StringVar(&o.migStrategy, "mig-strategy", "none", "how to advertise MIG devices; only none is served yet")
	f.StringSliceVar(&o.deviceListStrategy, "device-list-strategy", []string{"cdi-cri"}, "how containers get devices; only cdi-cri is served yet")
	f.StringVar(&o.deviceIDStrategy, "device-id-strategy", "uuid", "what names a device; only uuid is served yet")
	f.BoolVar(&o.passDeviceSpecs, "pass-device-specs", false, "pass device nodes besides CDI names; only false is served yet")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the devices that would be advertised, and end")
	f.StringVarP(&o.output, "output", "o", "table", "with --dry-run: table or json")
	f.BoolVar(&o.version, "version", false, "print the version, and end")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
	config.Describe(f, environment)
	f.Usage = func() { fmt.Fprintf(usage, help, f.FlagUsagesWrapped(100)) }
	return f
}

// parse reads command line, environment and configuration file, in the order in
// which they win.
func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := o.flags(stderr)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; see --help", f.Arg(0))
	}
	if err := config.Env(f, environment); err != nil {
		return nil, err
	}
	if o.configFile != "" {
		if err := o.readFile(f); err != nil {
			return nil, err
		}
	}
	return o, o.check()
}

// check refuses what is not served, rather than doing something else.
func (o *options) check() error {
	for _, c := range []struct {
		flag, value string
		served      bool
		only        string
	}{
		{"--mig-strategy", o.migStrategy, o.migStrategy == "none", "none"},
		{"--device-list-strategy", fmt.Sprint(o.deviceListStrategy), len(o.deviceListStrategy) == 1 && o.deviceListStrategy[0] == "cdi-cri", "cdi-cri"},
		{"--device-id-strategy", o.deviceIDStrategy, o.deviceIDStrategy == "uuid", "uuid"},
		{"--pass-device-specs", fmt.Sprint(o.passDeviceSpecs), !o.passDeviceSpecs, "false"},
		{"--log-format", o.logFormat, o.logFormat == "text" || o.logFormat == "json", "text or json"},
		{"--output", o.output, o.output == "table" || o.output == "json", "table or json"},
	} {
		if !c.served {
			return fmt.Errorf("%s: %q is not served, only %s", c.flag, c.value, c.only)
		}
	}
	for _, path := range []string{o.kubeletSocket, o.stateDir} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q must be absolute", path)
		}
	}
	if o.kubeletTimeout < 0 {
		return fmt.Errorf("--kubelet-timeout: %v is negative", o.kubeletTimeout)
	}
	return kubelet.CheckPath(filepath.Join("/", o.hostRoot, filepath.Dir(o.kubeletSocket), plugin.Endpoint))
}

func (o *options) config(started time.Time, stderr io.Writer) plugin.Config {
	log := o.logger(stderr)
	log.Info("starting", "precedence", "command line, environment, configuration file", "path", o.configFile, "socket", o.kubeletSocket, "pid", os.Getpid())
	return plugin.Config{
		HostRoot:        o.hostRoot,
		StateDir:        o.stateDir,
		KubeletSocket:   o.kubeletSocket,
		KubeletTimeout:  o.kubeletTimeout,
		Listen:          o.listen,
		FailOnInitError: o.failOnInitError,
		Driver:          o.place(),
		Open:            func(place driver.Place) (plugin.Opened, error) { return o.open(place, log) },
		Given:           os.Getenv(injection.Variable),
		Log:             log,
		Started:         started,
	}
}

func (o *options) logger(stderr io.Writer) *slog.Logger {
	var handler slog.Handler = slog.NewTextHandler(stderr, nil)
	if o.logFormat == "json" {
		handler = slog.NewJSONHandler(stderr, nil)
	}
	return slog.New(handler).With("component", "deviceplugin")
}

func (o *options) place() driver.Place {
	return driver.Place{HostRoot: o.hostRoot, Root: o.driverRoot}
}

// open opens NVML where the driver is found now.
func (o *options) open(place driver.Place, log *slog.Logger) (plugin.Opened, error) {
	root, path, err := place.Find()
	library := driver.Look(path)
	if err != nil && o.driverRoot == "" {
		if place.Root != "" {
			return plugin.Opened{}, err // there or nowhere
		}
		root = "/" // NVML's own search of the loader's path begins there
	}
	source, err := nvml.Open(nvml.Options{HostRoot: o.hostRoot, DriverRoot: root, Log: log})
	if err != nil {
		return plugin.Opened{}, err
	}
	if source.Library() != path { // found by the loader, or come just now
		library = driver.Look(source.Library())
	}
	return plugin.Opened{Source: source, Root: root, Library: library}, nil
}
