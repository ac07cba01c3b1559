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
	"github.com/gpuready/gpuready/deviceplugin/meter"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	strict "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/gpu/nvml/reading"
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

// options are the flags, whether they come from the command line, the
// environment or the configuration file.
type options struct {
	help, component string // of the subcommand, what --help prints and the log says; "": the plugin's
	version, dryRun bool
	shadow, once    bool
	output          string

	configFile      string
	named           named
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

	before    *last     // what the program before has left; nil: there was none
	following *follower // of the configuration, where that is followed

	args    []string          // as they were given
	name    string            // of the configuration, where it is one of several
	data    []byte            // of the file; nil: there is none
	hash    string            // of data; "": there is none
	file    *config.Config    // as it was read; empty where there is none
	config  *config.Config    // in force
	policy  health.Policy     // what XIDs do
	ignored []config.Ignored  // keys of the file that were passed over
	origin  map[string]string // where a flag was set: "--x", "$X" or the file
	given   []string          // what is not as by default, for the log
}

const help = `gpu-device-plugin advertises this node's NVIDIA GPUs and MIG devices to the
kubelet, as nvidia.com/gpu or as the configuration has it, and gives them to containers.

Usage:
  gpu-device-plugin [flags]
  gpu-device-plugin devices [flags]     print what would be advertised, and why a GPU is left out
  gpu-device-plugin check-config FILE   check a configuration file (see check-config --help)
  gpu-device-plugin shadow [flags]      run beside another device plugin, and say what differs
  gpu-device-plugin mps-daemon [flags]  run the MPS control daemons of shared GPUs (see mps-daemon --help)
  gpu-device-plugin wait [flags]        wait until containers are given the GPUs (see wait --help)

Examples:
  gpu-device-plugin
  gpu-device-plugin devices                  # what would be advertised
  gpu-device-plugin devices --mig-strategy mixed -o json
  gpu-device-plugin devices --config-file new.yaml
  gpu-device-plugin shadow --once            # what would change on this node
  gpu-device-plugin --driver-root /opt/driver --listen=
  gpu-device-plugin --config-file /etc/gpuready/device-plugin.yaml
  gpu-device-plugin --config-file old.yaml --unknown-keys=warn   # name what is not known, and serve
  gpu-device-plugin --config-dir /etc/gpuready/configs           # the node's label chooses one of them
  gpu-device-plugin devices --config-dir configs --config mixed

Flags (command line before environment before configuration file):
%s
The configuration file is watched: a new one is checked and put into force without a restart,
on SIGHUP too. One that is refused leaves the one before in force.

Exit codes:
  0  ended on SIGTERM or SIGINT, or to be started again in a container that is given
     the GPUs as they are now, or devices, --help, --version; shadow --once: nothing differs
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
  3  shadow --once: something differs
`

func (o *options) flags(usage io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet("gpu-device-plugin", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.configFile, "config-file", "", "configuration `file`, version: v1, of the NVIDIA device plugin")
	o.named.flags(f)
	f.StringVar(&o.unknownKeys, "unknown-keys", "refuse", "what becomes of a configuration file with keys that are not known: refuse, or warn and serve")
	f.StringVar(&o.kubeletSocket, "kubelet-socket", "/var/lib/kubelet/device-plugins/kubelet.sock", "the kubelet's registration `socket`; ours is made beside it")
	f.DurationVar(&o.kubeletTimeout, "kubelet-timeout", 0, "end with an error when there are devices and no kubelet for this long; 0: wait for ever")
	f.StringVar(&o.hostRoot, "host-root", "/", "`folder` where the host's file system is seen")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "host `path` of the components' states")
	f.StringVar(&o.listen, "listen", ":9402", "`address` for /healthz, /readyz, /metrics, empty: none")
	f.StringVar(&o.nfdDir, "nfd-dir", "", "host `path` of Node Feature Discovery's folder for feature files, which then gets the GPUs' labels; empty: gpu-validator publishes them")
	f.StringVar(&o.logFormat, "log-format", "text", "log as text or json")
	o.settingFlags(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "the same as gpu-device-plugin devices")
	f.BoolVar(&o.shadow, "shadow", false, "the same as gpu-device-plugin shadow: register nothing, and log what differs from the device plugin that serves this node")
	f.BoolVar(&o.once, "once", false, "with shadow: compare once, print a report, and end")
	f.DurationVar(&o.shadowInterval, "shadow-interval", 5*time.Second, "with shadow: how often the kubelet is asked, whose API has no watch")
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

// parse reads command line, environment and configuration file, in the order in
// which they win.
func parse(args []string, stderr io.Writer) (*options, error) {
	return (&options{}).parse(args, stderr)
}

func (o *options) parse(args []string, stderr io.Writer) (*options, error) {
	f, err := o.parseFlags(args, stderr)
	if err != nil {
		return nil, err
	}
	if err := o.inherit(); err != nil {
		return nil, err
	}
	switch {
	case o.configFile != "":
		return o.begin(f)
	case o.named.dir != "":
		if before := o.asBefore(); before != nil {
			return before, nil
		}
		o.given = o.listed(f)
		return o, nil // it is to be chosen
	}
	return o, o.adopt(f, nil)
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

// adopt lays the flags over a configuration file; nil: there is none.
func (o *options) adopt(f *pflag.FlagSet, data []byte) (err error) {
	o.file = &config.Config{Version: config.Version}
	if o.data = data; data != nil {
		o.hash = hash(data)
		if err := o.readData(data, f); err != nil {
			return err
		}
	}
	if o.config, err = o.whole(); err != nil {
		return err
	}
	if err := o.checkSockets(); err != nil {
		return err
	}
	o.given = o.listed(f)
	return o.readPolicy()
}

// check refuses what is not served, rather than doing something else.
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
			return fmt.Errorf("%s: %q is not served, only %s", c.flag, c.value, c.only)
		}
	}
	if err := o.named.check(o.configFile); err != nil {
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

// longestMIG is the longest name of a MIG resource that a driver makes today.
const longestMIG = "nvidia.com/mig-1g.180gb.me.all"

// checkSockets says whether the socket of every resource has a path that a socket
// can have.
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
	o.following = newFollower(o, log)
	log.Info("starting", "precedence", "command line, environment, configuration file", "path", o.configFile, "settings", strings.Join(o.given, ", "),
		"socket", o.kubeletSocket, "pid", os.Getpid())
	o.warn(log)
	meters := meter.New()
	return plugin.Config{
		HostRoot:       o.hostRoot,
		StateDir:       o.stateDir,
		KubeletSocket:  o.kubeletSocket,
		KubeletTimeout: o.kubeletTimeout,
		Listen:         o.listen,
		Settings:       o.settingsInForce(),
		Follow:         o.following.follow,
		Driver:         driver.Place{HostRoot: o.hostRoot},
		Open:           func(place driver.Place) (plugin.Opened, error) { return o.open(place, log, meters.NVML) },
		NFDDir:         o.nfdDir,
		Given:          os.Getenv(injection.Variable),
		Log:            log,
		Meters:         meters,
		Started:        started,
	}
}

// ignoredKeys are the paths of the keys that were passed over.
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
	inotify.LogTo(log)
	return log
}

func (o *options) place() driver.Place {
	return driver.Place{HostRoot: o.hostRoot, Root: *o.config.Flags.NvidiaDriverRoot}
}

// settingsInForce are those that the options came to; none where the
// configuration is still to be chosen.
func (o *options) settingsInForce() plugin.Settings {
	return plugin.Settings{Config: o.config, Health: o.policy, Name: o.name, Hash: o.hash, Ignored: o.ignoredKeys()}
}

// warn names the keys that were passed over.
func (o *options) warn(log *slog.Logger) {
	for _, key := range o.ignored {
		log.Warn("key of the configuration file ignored", "path", o.configFile, "key", key.Path, "message", key.Hint)
	}
}

// open opens NVML where the driver is found now.
func (o *options) open(place driver.Place, log *slog.Logger, failed func(code string)) (plugin.Opened, error) {
	root, path, err := place.Find()
	library := driver.Look(path)
	if err != nil {
		if place.Only {
			return plugin.Opened{}, err
		}
		if place.Root == "" {
			root = "/" // NVML's own search of the loader's path begins there
		}
	}
	source, err := nvml.Open(nvml.Options{HostRoot: o.hostRoot, DriverRoot: root, Log: log, Failed: failed, Outside: reading.Outside(o.hostRoot, root)})
	if err != nil {
		return plugin.Opened{}, err
	}
	if source.Library() != path { // found by the loader, or come just now
		library = driver.Look(source.Library())
	}
	return plugin.Opened{Source: source, Root: root, Library: library}, nil
}
