// Package settings reads the settings of the command line, the environment and the configuration
// file, in this order of precedence. Watcher delivers each new configuration while the program
// runs. The file may be one of a folder, chosen by the node's label.
package settings

//go:generate go test -tags grpcnotrace -run ^TestThePageListsTheSettings$ . -update

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/telemetry"
	"github.com/gpuready/gpuready/internal/cmdline"
	baseconfig "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// DefaultStateDir is the default of --state-dir.
const DefaultStateDir = "/run/nvidia/gpuready"

// Command holds what Parse needs to know of a subcommand.
type Command struct {
	Mode     Mode   // unless a flag or a variable asks for another
	Help     string // the text of --help, with %s for the flags
	Previous []byte // the data that the previous program handed over; nil: there was none
}

// Mode selects what the program does with the settings.
type Mode int

// The modes. The flags --dry-run and --shadow, which people know from NVIDIA's device
// plugin and from earlier releases, and the variable SHADOW ask for the second and third.
const (
	Serve        Mode = iota // run: advertise the GPUs to the kubelet
	PrintDevices             // print what would be advertised
	Shadow                   // compare with the device plugin that serves the node
)

// Options are the settings from the command line, the environment and the configuration
// file.
type Options struct {
	Mode           Mode
	dryRun, shadow bool   // the flags that ask for a mode
	Version        bool   // only print the version
	Once           bool   // with Shadow: compare once and end
	Output         string // of PrintDevices, and Shadow with Once: table or json

	ConfigFile      string
	configs         configSet
	unknownKeys     string
	KubeletSocket   string
	KubeletTimeout  time.Duration
	HostRoot        string
	StateDir        string
	PodResources    string
	ShadowInterval  time.Duration
	Listen          string
	DCGMMetrics     telemetry.DCGM
	Serve           string // plugin or dra: who offers the GPUs to pods
	MIG             string // existing or dynamic: whether MIG partitions are created on request
	NodeName        string
	LogFormat       string
	NFDDir          string
	cdiFeatureFlags []string

	// Settings that the configuration file has too.
	settings config.Flags
	imex     config.Imex

	handedOver *handedOver // handed over by the previous program; nil: there was none

	command     Command
	args        []string          // of the command line
	Name        string            // of the configuration in --config-dir
	data        []byte            // of the file; nil: no file
	Hash        string            // of data; "": no file
	file        *config.Config    // the file as parsed; empty without a file
	Config      *config.Config    // in force, complete; nil: the node has not chosen one yet
	Policy      health.Policy     // effect of XIDs
	Ignored     []config.Ignored  // unknown keys of the file that were skipped
	origin      map[string]string // of each flag's value: "--x", "$X" or the file
	NonDefaults []string          // settings other than the defaults, for the log
}

// newFlagSet returns all flags, whose values go into o. --help is printed to usage.
func (o *Options) newFlagSet(usage io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet("gpu-device-plugin", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.ConfigFile, "config-file", "", "configuration `file`, version: v1, of the NVIDIA device plugin")
	o.configs.addFlags(f)
	f.StringVar(&o.unknownKeys, "unknown-keys", "refuse", "what to do with unknown keys in the configuration file: refuse it, or warn and ignore them")
	f.StringVar(&o.KubeletSocket, "kubelet-socket", "/var/lib/kubelet/device-plugins/kubelet.sock", "the kubelet's registration `socket`; ours is created beside it")
	f.DurationVar(&o.KubeletTimeout, "kubelet-timeout", 0, "end with an error when there are devices but no kubelet for this long; 0: no limit")
	f.StringVar(&o.HostRoot, "host-root", "/", "`folder` at which the host's file system is mounted")
	f.StringVar(&o.StateDir, "state-dir", DefaultStateDir, "host `path` of the components' states")
	f.StringVar(&o.Listen, "listen", ":9402", "`address` for /healthz, /readyz, /metrics, empty: none")
	f.Var(&o.DCGMMetrics, "dcgm-metrics", "serve the GPUs' metrics also under the names and units of NVIDIA's dcgm-exporter of this `release`: 4.8, or 4.9 with base units; leave it off where dcgm-exporter runs, as every value would exist twice")
	f.Lookup("dcgm-metrics").NoOptDefVal = string(telemetry.DCGM48)
	f.StringVar(&o.Serve, "serve", nodestate.ServePlugin, "who offers the GPUs to pods: plugin, or dra, with which this program finds the GPUs "+
		"and watches their health for gpu-dra-driver, and registers nothing with the kubelet; the node's label "+nodestate.ServeLabel+" overrides it")
	f.StringVar(&o.MIG, "mig", nodestate.MIGExisting, "where gpu-dra-driver offers the GPUs, of those in MIG mode: offer the existing MIG devices, or dynamic, with which this program creates and destroys partitions for gpu-dra-driver as claims need them")
	f.StringVar(&o.NodeName, "node-name", "", "with --dcgm-metrics: the `name` of the node in dcgm-exporter's label hostname; empty: the name of the host, which in a pod is the pod's")
	f.StringVar(&o.NFDDir, "nfd-dir", "", "host `path` of Node Feature Discovery's folder for feature files, into which the GPUs' labels are written; empty: gpu-validator publishes them")
	f.StringVar(&o.LogFormat, "log-format", "text", "log as text or json")
	o.addSettingFlags(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "the same as gpu-device-plugin devices")
	f.BoolVar(&o.shadow, "shadow", false, "the same as gpu-device-plugin shadow: register nothing, and log differences from the device plugin that serves this node")
	for _, alias := range []string{"dry-run", "shadow"} {
		f.Lookup(alias).Hidden = true
	}
	f.BoolVar(&o.Once, "once", false, "with shadow: compare once, print a report, and end")
	f.DurationVar(&o.ShadowInterval, "shadow-interval", 5*time.Second, "with shadow: interval of queries to the kubelet, whose API has no watch")
	f.StringVar(&o.PodResources, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources API `socket`, for the metrics of pods that hold GPUs, and for shadow")
	f.StringVarP(&o.Output, "output", "o", "table", "with devices, and shadow --once: table or json")
	f.BoolVar(&o.Version, "version", false, "print the version, and end")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
	baseconfig.Describe(f, Environment)
	f.Usage = func() { fmt.Fprintf(usage, o.command.Help, f.FlagUsagesWrapped(100)) }
	return f
}

// Usage returns the text of --help.
func Usage(help string) string {
	var text strings.Builder
	(&Options{command: Command{Help: help}}).newFlagSet(&text).Usage()
	return text.String()
}

// Parse reads command line, environment and configuration file of a command; earlier ones take
// precedence. If the file cannot be used, the configuration that the previous program handed
// over stays in force. --help prints the help to usage and returns pflag.ErrHelp.
func Parse(c Command, args []string, usage io.Writer) (*Options, error) {
	o := &Options{command: c}
	f, err := o.parseFlags(args, usage)
	if err != nil {
		return nil, err
	}
	if err := o.readHandedOver(); err != nil {
		return nil, err
	}
	switch {
	case o.ConfigFile != "":
		return o.readInitialFile(f)
	case o.configs.dir != "":
		if previous := o.withHandedOver(); previous != nil {
			return previous, nil
		}
		o.NonDefaults = o.listSettings(f)
		return o, nil // without Config: a Watcher delivers it once it is chosen
	}
	return o, o.applyFile(f, nil)
}

// ParseFile returns the settings of a file and the defaults, without command line and
// environment. If the file is valid but its settings are not 		supported  , it returns both the
// options and the error.
func ParseFile(path string, data []byte, unknownKeys string) (*Options, error) {
	o := &Options{origin: map[string]string{}}
	defaults := o.newFlagSet(io.Discard)
	o.ConfigFile, o.unknownKeys = path, unknownKeys
	if err := o.readData(data, defaults); err != nil {
		return nil, err
	}
	var err error
	o.Config, err = o.mergeConfig()
	return o, err
}

// parseFlags reads command line and environment, and records the origin of each value.
func (o *Options) parseFlags(args []string, usage io.Writer) (*pflag.FlagSet, error) {
	o.args, o.origin, o.Mode = args, map[string]string{}, o.command.Mode
	f := o.newFlagSet(usage)
	switch err := cmdline.Parse(f, args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, cmdline.AddHelp(err, f.Name())
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; see --help", f.Arg(0))
	}
	f.Visit(func(flag *pflag.Flag) { o.origin[flag.Name] = "--" + flag.Name })
	for _, names := range []map[string]string{Environment, olderEnvironment} {
		if err := baseconfig.Env(f, names); err != nil {
			return nil, err
		}
		f.Visit(func(flag *pflag.Flag) {
			if o.origin[flag.Name] == "" {
				o.origin[flag.Name] = "$" + names[flag.Name]
			}
		})
	}
	switch {
	case o.dryRun:
		o.Mode = PrintDevices
	case o.shadow && o.Mode == Serve:
		o.Mode = Shadow
	}
	return f, o.checkValues()
}

// applyFile applies the content of a configuration file, or nil for no file; flags override it.
func (o *Options) applyFile(f *pflag.FlagSet, data []byte) (err error) {
	o.file = &config.Config{Version: config.Version}
	if o.data = data; data != nil {
		o.Hash = shortHash(data)
		if err := o.readData(data, f); err != nil {
			return err
		}
	}
	if o.Config, err = o.mergeConfig(); err != nil {
		return err
	}
	if err := o.checkSockets(); err != nil {
		return err
	}
	o.NonDefaults = o.listSettings(f)
	return o.deriveXIDPolicy()
}

// checkValues refuses unsupported values of flags.
func (o *Options) checkValues() error {
	for _, c := range []struct {
		flag, value string
		supported   bool
		only        string // what is supported
	}{
		{"--unknown-keys", o.unknownKeys, o.unknownKeys == "refuse" || o.unknownKeys == "warn", "refuse or warn"},
		{"--cdi-feature-flags", fmt.Sprint(o.cdiFeatureFlags), len(o.cdiFeatureFlags) == 0, "none: the toolkit writes the CDI specs"},
		{"--serve", o.Serve, o.Serve == nodestate.ServePlugin || o.Serve == nodestate.ServeDRA, "plugin or dra"},
		{"--mig", o.MIG, o.MIG == nodestate.MIGExisting || o.MIG == nodestate.MIGDynamic, "existing or dynamic"},
		{"--log-format", o.LogFormat, o.LogFormat == "text" || o.LogFormat == "json", "text or json"},
		{"--output", o.Output, o.Output == "table" || o.Output == "json", "table or json"},
	} {
		if !c.supported {
			return fmt.Errorf("%s: %q is not supported, only %s", c.flag, c.value, c.only)
		}
	}
	if err := o.configs.checkFlags(o.ConfigFile); err != nil {
		return err
	}
	for _, path := range []string{o.KubeletSocket, o.StateDir, o.PodResources, cmp.Or(o.NFDDir, "/")} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q must be absolute", path)
		}
	}
	if o.Once && !o.shadow && o.command.Mode != Shadow {
		return errors.New("--once: only with shadow")
	}
	if o.ShadowInterval <= 0 {
		return fmt.Errorf("--shadow-interval: %v is not positive", o.ShadowInterval)
	}
	if o.KubeletTimeout < 0 {
		return fmt.Errorf("--kubelet-timeout: %v is negative", o.KubeletTimeout)
	}
	return nil
}

// longestMIG is the longest name of a MIG resource that today's drivers lead to.
const longestMIG = "nvidia.com/mig-1g.180gb.me.all"

// checkSockets returns an error if the path of any resource's socket is too long.
func (o *Options) checkSockets() error {
	names := []string{config.GPU}
	if o.Config.Flags.MIG() == config.MIGMixed {
		names = append(names, longestMIG)
	}
	for _, list := range [][]config.Resource{o.Config.Resources.GPUs, o.Config.Resources.MIG} {
		for _, r := range list {
			names = append(names, r.Name)
		}
	}
	_, shared := o.Config.Sharing.Active()
	for _, r := range shared.Resources {
		names = append(names, r.Rename)
	}
	for _, name := range names {
		if err := kubelet.CheckPath(filepath.Join("/", o.HostRoot, filepath.Dir(o.KubeletSocket), kubelet.Endpoint(name))); err != nil {
			return err
		}
	}
	return nil
}

// IgnoredKeys returns the paths of the unknown keys that were skipped.
func (o *Options) IgnoredKeys() []string {
	var keys []string
	for _, key := range o.Ignored {
		keys = append(keys, key.Path)
	}
	return keys
}

// LogIgnoredKeys logs the unknown keys that were skipped.
func (o *Options) LogIgnoredKeys(log *slog.Logger) {
	for _, key := range o.Ignored {
		log.Warn("key of the configuration file ignored", "path", o.ConfigFile, "key", key.Path, "message", key.Hint)
	}
}
