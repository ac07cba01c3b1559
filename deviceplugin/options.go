package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/metrics"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	strict "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/gpu/nvml"

	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/inotify"
)

// Exit codes.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitDiffers = 3 // shadow --once
)

const defaultStateDir = "/run/nvidia/gpuready"

// options are the settings from the command line, the environment and the configuration
// file.
type options struct {
	help, component string // help text and log component of the subcommand; "": the plugin's
	version, dryRun bool
	shadow, once    bool
	output          string

	configFile      string
	configs         configSet
	unknownKeys     string
	kubeletSocket   string
	kubeletTimeout  time.Duration
	hostRoot        string
	stateDir        string
	podResources    string
	shadowInterval  time.Duration
	listen          string
	logFormat       string
	nfdDir          string
	cdiFeatureFlags []string

	// Settings that the configuration file has too.
	settings config.Flags
	imex     config.Imex

	previous *handedOver    // handed over by the previous program; nil: there was none
	watcher  *configWatcher // watches the configuration; nil: nothing watches it

	args        []string          // of the command line
	name        string            // of the configuration in --config-dir
	data        []byte            // of the file; nil: no file
	hash        string            // of data; "": no file
	file        *config.Config    // as parsed; empty without a file
	config      *config.Config    // in force
	policy      health.Policy     // effect of XIDs
	ignored     []config.Ignored  // unknown keys of the file that were skipped
	origin      map[string]string // of each flag's value: "--x", "$X" or the file
	nonDefaults []string          // settings other than the defaults, for the log
}

const help = `gpu-device-plugin advertises this node's NVIDIA GPUs and MIG devices to the
kubelet, as nvidia.com/gpu or as configured, and allocates them to containers.

Usage:
  gpu-device-plugin [flags]
  gpu-device-plugin devices [flags]     print what would be advertised, and why a GPU is left out
  gpu-device-plugin check-config FILE   check a configuration file (see check-config --help)
  gpu-device-plugin shadow [flags]      run beside another device plugin, and report differences
  gpu-device-plugin mps-daemon [flags]  run the MPS control daemons of shared GPUs (see mps-daemon --help)
  gpu-device-plugin wait [flags]        wait until containers get the GPUs (see wait --help)

Examples:
  gpu-device-plugin
  gpu-device-plugin devices                  # what would be advertised
  gpu-device-plugin devices --mig-strategy mixed -o json
  gpu-device-plugin devices --config-file new.yaml
  gpu-device-plugin shadow --once            # what would change on this node
  gpu-device-plugin --driver-root /opt/driver --listen=
  gpu-device-plugin --config-file /etc/gpuready/device-plugin.yaml
  gpu-device-plugin --config-file old.yaml --unknown-keys=warn   # warn about unknown keys, and serve
  gpu-device-plugin --config-dir /etc/gpuready/configs           # the node's label chooses a file
  gpu-device-plugin devices --config-dir configs --config mixed

Flags (command line before environment before configuration file):
%s
The configuration file is watched: a new one is checked and applied without a restart,
on SIGHUP too. If it is refused, the previous one stays in force.

Exit codes:
  0  ended on SIGTERM or SIGINT, or so that its container is created again with the
     current GPUs, or devices, --help, --version; shadow --once: no differences
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
  3  shadow --once: there are differences
`

func (o *options) flags(usage io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet("gpu-device-plugin", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.configFile, "config-file", "", "configuration `file`, version: v1, of the NVIDIA device plugin")
	o.configs.flags(f)
	f.StringVar(&o.unknownKeys, "unknown-keys", "refuse", "what to do with unknown keys in the configuration file: refuse it, or warn and ignore them")
	f.StringVar(&o.kubeletSocket, "kubelet-socket", "/var/lib/kubelet/device-plugins/kubelet.sock", "the kubelet's registration `socket`; ours is created beside it")
	f.DurationVar(&o.kubeletTimeout, "kubelet-timeout", 0, "end with an error when there are devices but no kubelet for this long; 0: no limit")
	f.StringVar(&o.hostRoot, "host-root", "/", "`folder` at which the host's file system is mounted")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "host `path` of the components' states")
	f.StringVar(&o.listen, "listen", ":9402", "`address` for /healthz, /readyz, /metrics, empty: none")
	f.StringVar(&o.nfdDir, "nfd-dir", "", "host `path` of Node Feature Discovery's folder for feature files, into which the GPUs' labels are written; empty: gpu-validator publishes them")
	f.StringVar(&o.logFormat, "log-format", "text", "log as text or json")
	o.settingFlags(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "the same as gpu-device-plugin devices")
	f.BoolVar(&o.shadow, "shadow", false, "the same as gpu-device-plugin shadow: register nothing, and log differences from the device plugin that serves this node")
	f.BoolVar(&o.once, "once", false, "with shadow: compare once, print a report, and end")
	f.DurationVar(&o.shadowInterval, "shadow-interval", 5*time.Second, "with shadow: interval of queries to the kubelet, whose API has no watch")
	f.StringVar(&o.podResources, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "with shadow: the kubelet's PodResources API `socket`")
	f.StringVarP(&o.output, "output", "o", "table", "with devices, and shadow --once: table or json")
	f.BoolVar(&o.version, "version", false, "print the version, and end")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
	strict.Describe(f, environment)
	f.Usage = func() { fmt.Fprintf(usage, cmp.Or(o.help, help), f.FlagUsagesWrapped(100)) }
	return f
}

// parse reads command line, environment and configuration file. Earlier ones take
// precedence.
func parse(args []string, stderr io.Writer) (*options, error) {
	return (&options{}).parse(args, stderr)
}

func (o *options) parse(args []string, stderr io.Writer) (*options, error) {
	f, err := o.parseFlags(args, stderr)
	if err != nil {
		return nil, err
	}
	if err := o.readHandover(); err != nil {
		return nil, err
	}
	switch {
	case o.configFile != "":
		return o.readInitial(f)
	case o.configs.dir != "":
		if before := o.withPrevious(); before != nil {
			return before, nil
		}
		o.nonDefaults = o.listSettings(f)
		return o, nil // not chosen yet
	}
	return o, o.applyFile(f, nil)
}

// parseFlags reads command line and environment.
func (o *options) parseFlags(args []string, stderr io.Writer) (*pflag.FlagSet, error) {
	o.args, o.origin = args, map[string]string{}
	f := o.flags(stderr)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; see --help", f.Arg(0))
	}
	f.Visit(func(flag *pflag.Flag) { o.origin[flag.Name] = "--" + flag.Name })
	for _, names := range []map[string]string{environment, olderEnvironment} {
		if err := strict.Env(f, names); err != nil {
			return nil, err
		}
		f.Visit(func(flag *pflag.Flag) {
			if o.origin[flag.Name] == "" {
				o.origin[flag.Name] = "$" + names[flag.Name]
			}
		})
	}
	return f, o.check()
}

// applyFile overlays a configuration file with the flags; nil: no file.
func (o *options) applyFile(f *pflag.FlagSet, data []byte) (err error) {
	o.file = &config.Config{Version: config.Version}
	if o.data = data; data != nil {
		o.hash = hash(data)
		if err := o.readData(data, f); err != nil {
			return err
		}
	}
	if o.config, err = o.mergeConfig(); err != nil {
		return err
	}
	if err := o.checkSockets(); err != nil {
		return err
	}
	o.nonDefaults = o.listSettings(f)
	return o.readPolicy()
}

// check refuses unsupported values instead of ignoring them.
func (o *options) check() error {
	for _, c := range []struct {
		flag, value string
		served      bool
		only        string
	}{
		{"--unknown-keys", o.unknownKeys, o.unknownKeys == "refuse" || o.unknownKeys == "warn", "refuse or warn"},
		{"--cdi-feature-flags", fmt.Sprint(o.cdiFeatureFlags), len(o.cdiFeatureFlags) == 0, "none: the toolkit writes the CDI specs"},
		{"--log-format", o.logFormat, o.logFormat == "text" || o.logFormat == "json", "text or json"},
		{"--output", o.output, o.output == "table" || o.output == "json", "table or json"},
	} {
		if !c.served {
			return fmt.Errorf("%s: %q is not supported, only %s", c.flag, c.value, c.only)
		}
	}
	if err := o.configs.check(o.configFile); err != nil {
		return err
	}
	for _, path := range []string{o.kubeletSocket, o.stateDir, o.podResources, cmp.Or(o.nfdDir, "/")} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q must be absolute", path)
		}
	}
	if o.once && !o.shadow {
		return errors.New("--once: only with shadow")
	}
	if o.shadowInterval <= 0 {
		return fmt.Errorf("--shadow-interval: %v is not positive", o.shadowInterval)
	}
	if o.kubeletTimeout < 0 {
		return fmt.Errorf("--kubelet-timeout: %v is negative", o.kubeletTimeout)
	}
	return nil
}

// longestMIG is the longest name of a MIG resource with today's drivers.
const longestMIG = "nvidia.com/mig-1g.180gb.me.all"

// checkSockets returns an error if the path of any resource's socket is too long.
func (o *options) checkSockets() error {
	names := []string{config.GPU}
	if o.config.Flags.MIG() == config.MIGMixed {
		names = append(names, longestMIG)
	}
	for _, list := range [][]config.Resource{o.config.Resources.GPUs, o.config.Resources.MIG} {
		for _, r := range list {
			names = append(names, r.Name)
		}
	}
	_, shared := o.config.Sharing.Active()
	for _, r := range shared.Resources {
		names = append(names, r.Rename)
	}
	for _, name := range names {
		if err := kubelet.CheckPath(filepath.Join("/", o.hostRoot, filepath.Dir(o.kubeletSocket), plugin.Endpoint(name))); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) plugin(started time.Time, stderr io.Writer) plugin.Config {
	log := o.logger(stderr)
	o.watcher = newConfigWatcher(o, log)
	log.Info("starting", "precedence", "command line, environment, configuration file", "path", o.configFile, "settings", strings.Join(o.nonDefaults, ", "),
		"socket", o.kubeletSocket, "pid", os.Getpid())
	o.warn(log)
	meters := metrics.New()
	return plugin.Config{
		HostRoot:       o.hostRoot,
		StateDir:       o.stateDir,
		KubeletSocket:  o.kubeletSocket,
		KubeletTimeout: o.kubeletTimeout,
		Listen:         o.listen,
		Settings:       o.settingsInForce(),
		Follow:         o.watcher.watch,
		Driver:         driver.Place{HostRoot: o.hostRoot},
		Open:           func(place driver.Place) (plugin.Opened, error) { return o.open(place, log, meters.CountNVMLError) },
		NFDDir:         o.nfdDir,
		Given:          os.Getenv(injection.Variable),
		Log:            log,
		Meters:         meters,
		Started:        started,
	}
}

// ignoredKeys returns the paths of the unknown keys that were skipped.
func (o *options) ignoredKeys() []string {
	var keys []string
	for _, key := range o.ignored {
		keys = append(keys, key.Path)
	}
	return keys
}

func (o *options) logger(stderr io.Writer) *slog.Logger {
	var handler slog.Handler = slog.NewTextHandler(stderr, nil)
	if o.logFormat == "json" {
		handler = slog.NewJSONHandler(stderr, nil)
	}
	log := slog.New(handler).With("component", cmp.Or(o.component, "deviceplugin"))
	inotify.SetLogger(log)
	return log
}

func (o *options) driverPlace() driver.Place {
	return driver.Place{HostRoot: o.hostRoot, Root: *o.config.Flags.NvidiaDriverRoot}
}

// settingsInForce returns the plugin's settings. They are empty while the configuration
// is not chosen.
func (o *options) settingsInForce() plugin.Settings {
	return plugin.Settings{Config: o.config, Health: o.policy, Name: o.name, Hash: o.hash, Ignored: o.ignoredKeys()}
}

// warn logs the unknown keys that were skipped.
func (o *options) warn(log *slog.Logger) {
	for _, key := range o.ignored {
		log.Warn("key of the configuration file ignored", "path", o.configFile, "key", key.Path, "message", key.Hint)
	}
}

// open opens NVML where the driver is now.
func (o *options) open(place driver.Place, log *slog.Logger, failed func(code string)) (plugin.Opened, error) {
	root, path, err := place.Find()
	library := driver.Stat(path)
	if err != nil {
		if place.Only {
			return plugin.Opened{}, err
		}
		if place.Root == "" {
			root = "/" // NVML then searches the loader's path
		}
	}
	source, err := nvml.Open(nvml.Options{HostRoot: o.hostRoot, DriverRoot: root, Log: log, OnFailure: failed, ReadOutside: nvml.NewOutsideReader(o.hostRoot, root)})
	if err != nil {
		return plugin.Opened{}, err
	}
	if source.Library() != path { // found by the loader, or newly installed
		library = driver.Stat(source.Library())
	}
	return plugin.Opened{Source: source, Root: root, Library: library}, nil
}
