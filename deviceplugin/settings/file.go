package settings

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	baseconfig "github.com/gpuready/gpuready/internal/config"
)

// filePaths maps each flag to its path in the configuration file.
var filePaths = map[string]string{
	"mig-strategy":                     "flags.migStrategy",
	"fail-on-init-error":               "flags.failOnInitError",
	"mps-root":                         "flags.mpsRoot",
	"driver-root":                      "flags.nvidiaDriverRoot",
	"dev-root":                         "flags.nvidiaDevRoot",
	"gdrcopy-enabled":                  "flags.gdrcopyEnabled",
	"gds-enabled":                      "flags.gdsEnabled",
	"mofed-enabled":                    "flags.mofedEnabled",
	"device-discovery-strategy":        "flags.deviceDiscoveryStrategy",
	"pass-device-specs":                "flags.plugin.passDeviceSpecs",
	"device-list-strategy":             "flags.plugin.deviceListStrategy",
	"device-id-strategy":               "flags.plugin.deviceIDStrategy",
	"cdi-annotation-prefix":            "flags.plugin.cdiAnnotationPrefix",
	"nvidia-cdi-hook-path":             "flags.plugin.nvidiaCTKPath",
	"driver-root-ctr-path":             "flags.plugin.containerDriverRoot",
	"shared-devices-allocation-policy": "flags.plugin.sharedDevicesAllocationPolicy",
	"imex-channel-ids":                 "imex.channelIDs",
	"imex-required":                    "imex.required",
}

// addSettingFlags defines the flags of the settings that the configuration file has too.
func (o *Options) addSettingFlags(f *pflag.FlagSet) {
	s, p := &o.settings, &o.settings.Plugin
	text := func(field **string, name, value, usage string) {
		*field = f.String(name, value, usage)
	}
	toggle := func(field **bool, name string, value bool, usage string) {
		*field = f.Bool(name, value, usage)
	}
	text(&s.NvidiaDriverRoot, "driver-root", "", "host `path` of the driver's root (default: "+driver.Containerised+" where it holds a driver, else /)")
	text(&s.NvidiaDevRoot, "dev-root", "", "host `path` below which the device nodes for containers are (default: the driver's root if it has them, else /)")
	toggle(&s.FailOnInitError, "fail-on-init-error", true, "end, rather than wait, when the driver is there and does not work")
	text(&s.MigStrategy, "mig-strategy", "none", "how to advertise MIG devices: none, single or mixed")
	text(&s.DeviceDiscoveryStrategy, "device-discovery-strategy", "auto", "how to find GPUs: auto or nvml, which are the same")
	f.StringSliceVar((*[]string)(&p.DeviceListStrategy), "device-list-strategy", []string{"cdi-cri"}, "how containers get devices: cdi-cri, cdi-annotations, envvar, volume-mounts")
	text(&p.DeviceIDStrategy, "device-id-strategy", "uuid",
		"what names a device to the NVIDIA container runtime: uuid or index; the kubelet's IDs and CDI names are UUIDs with either")
	toggle(&p.PassDeviceSpecs, "pass-device-specs", false, "pass device nodes, too, for the kubelet's static CPU manager")
	text(&p.SharedDevicesAllocationPolicy, "shared-devices-allocation-policy", "distributed", "which replicas and MIG devices to prefer: distributed over the GPUs, or packed onto few")
	text(&p.CDIAnnotationPrefix, "cdi-annotation-prefix", "cdi.k8s.io/", "prefix of the annotations of cdi-annotations")
	f.StringSliceVar(&o.cdiFeatureFlags, "cdi-feature-flags", nil, "refused unless empty: the toolkit writes the CDI specs")
	text(&p.NvidiaCTKPath, "nvidia-cdi-hook-path", "/usr/bin/nvidia-ctk", "accepted for the reference's sake: the toolkit writes the CDI specs")
	text(&p.ContainerDriverRoot, "driver-root-ctr-path", "/driver-root", "accepted for the reference's sake: the driver is found below --host-root")
	text(&s.MpsRoot, "mps-root", "/run/nvidia/mps", "host `path` of the MPS control daemon's files")
	toggle(&s.GDRCopyEnabled, "gdrcopy-enabled", false, "give containers GDRCopy")
	toggle(&s.GDSEnabled, "gds-enabled", false, "give containers GPUDirect Storage")
	toggle(&s.MOFEDEnabled, "mofed-enabled", false, "give containers Mellanox OFED")
	f.IntSliceVar(&o.imex.ChannelIDs, "imex-channel-ids", nil, "IMEX channels to give to containers: none, or 0")
	o.imex.Required = f.Bool("imex-required", false, "allocate no GPU, rather than leave the channel out, if the node has no IMEX channel")
}

// readData decodes a configuration file and sets those flags that neither the command
// line nor the environment has set.
func (o *Options) readData(data []byte, flags *pflag.FlagSet) (err error) {
	unknown := config.Refuse
	if o.unknownKeys == "warn" {
		unknown = config.Warn
	}
	if o.file, o.Ignored, err = config.Parse(data, o.ConfigFile, config.Options{UnknownKeys: unknown}); err != nil {
		return err
	}
	fileValues := o.file.FlagValues()
	for _, flag := range slices.Sorted(maps.Keys(filePaths)) {
		value, isSet := fileValues[filePaths[flag]]
		if !isSet || flags.Changed(flag) {
			continue
		}
		if value == "" && flags.Lookup(flag).DefValue == "[]" {
			continue // an empty list is the default
		}
		if err := flags.Set(flag, value); err != nil {
			return &baseconfig.Error{Source: o.ConfigFile, Path: filePaths[flag], Err: err}
		}
		o.origin[flag] = o.ConfigFile
	}
	return nil
}

// mergeConfig returns the configuration in force: the file, overridden by flags and environment
// variables, and completed by the defaults. Its errors name each setting by its origin. A valid
// configuration that is not supported is returned with an error.
func (o *Options) mergeConfig() (*config.Config, error) {
	c := o.file.With(o.settings, o.imex)
	if err := errors.Join(o.attributeErrors(c.Check())...); err != nil {
		return nil, err
	}
	return c, errors.Join(o.attributeErrors(checkSupported(c))...)
}

// deriveXIDPolicy derives the policy for XIDs from the file and NVIDIA's two
// variables, which override it.
func (o *Options) deriveXIDPolicy() error {
	disable, enable := os.Getenv(health.DisableVariable), os.Getenv(health.EnableVariable)
	changes, err := health.ParseDisable(disable, enable)
	if err != nil {
		return fmt.Errorf("environment variable %w", err)
	}
	o.Policy = health.DefaultPolicy().With(health.ChangesFromConfig(o.Config.Health)).With(changes)
	for variable, value := range map[string]string{health.DisableVariable: disable, health.EnableVariable: enable} {
		if value != "" {
			o.NonDefaults = append(o.NonDefaults, fmt.Sprintf("%s=%s", variable, value))
		}
	}
	slices.Sort(o.NonDefaults)
	return nil
}

// attributeErrors splits a joined error, and names the setting in each of its errors as the user
// set it: by a flag, a variable, or a path in the file.
func (o *Options) attributeErrors(err error) []error {
	var all []error
	for _, err := range SplitErrors(err) {
		if field, ok := errors.AsType[*baseconfig.Error](err); ok {
			renamed := *field
			err = &renamed
			renamed.Source = o.ConfigFile
			for flag, path := range filePaths {
				within, _, _ := strings.Cut(field.Path, "[")
				if origin := o.origin[flag]; path == within && origin != o.ConfigFile {
					renamed.Source, renamed.Path = "", origin
				}
			}
		}
		all = append(all, err)
	}
	return all
}

// SplitErrors returns the errors that errors.Join joined.
func SplitErrors(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// listSettings lists the settings that differ from the defaults, each with its origin,
// for the log.
func (o *Options) listSettings(flags *pflag.FlagSet) []string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if origin := o.origin[f.Name]; origin != "" {
			all = append(all, fmt.Sprintf("%s=%s (%s)", f.Name, strings.Trim(f.Value.String(), "[]"), origin))
		}
	})
	return all
}
