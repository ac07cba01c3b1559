package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/config"
)

// file is the reference's configuration file, version v1, with every key of it.
// What this version does not serve is decoded all the same, so that it is
// refused by its name and not passed over.
type file struct {
	Version   string         `json:"version"`
	Flags     fileFlags      `json:"flags"`
	Resources map[string]any `json:"resources"`
	Sharing   map[string]any `json:"sharing"`
	Imex      map[string]any `json:"imex"`
}

type fileFlags struct {
	MigStrategy             *string     `json:"migStrategy"`
	FailOnInitError         *bool       `json:"failOnInitError"`
	MpsRoot                 string      `json:"mpsRoot"`
	NvidiaDriverRoot        *string     `json:"nvidiaDriverRoot"`
	NvidiaDevRoot           *string     `json:"nvidiaDevRoot"`
	GDRCopyEnabled          bool        `json:"gdrcopyEnabled"`
	GDSEnabled              bool        `json:"gdsEnabled"`
	MOFEDEnabled            bool        `json:"mofedEnabled"`
	UseNodeFeatureAPI       bool        `json:"useNodeFeatureAPI"`
	DeviceDiscoveryStrategy string      `json:"deviceDiscoveryStrategy"`
	Plugin                  pluginFlags `json:"plugin"`
	GFD                     gfdFlags    `json:"gfd"`
}

type pluginFlags struct {
	PassDeviceSpecs               *bool      `json:"passDeviceSpecs"`
	DeviceListStrategy            stringList `json:"deviceListStrategy"`
	DeviceIDStrategy              *string    `json:"deviceIDStrategy"`
	CDIAnnotationPrefix           string     `json:"cdiAnnotationPrefix"`
	NvidiaCTKPath                 string     `json:"nvidiaCTKPath"`
	ContainerDriverRoot           string     `json:"containerDriverRoot"`
	SharedDevicesAllocationPolicy string     `json:"sharedDevicesAllocationPolicy"`
}

// gfdFlags are for the feature discovery, which shares the file with the
// device plugin; they mean nothing here.
type gfdFlags struct {
	Oneshot         bool   `json:"oneshot"`
	NoTimestamp     bool   `json:"noTimestamp"`
	SleepInterval   any    `json:"sleepInterval"`
	OutputFile      string `json:"outputFile"`
	MachineTypeFile string `json:"machineTypeFile"`
}

// stringList may be written as a list or as one string.
type stringList []string

// UnmarshalJSON is for package json.
func (l *stringList) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*l = strings.Split(one, ",")
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}

// parseFile decodes a configuration file strictly. source names it in errors.
func parseFile(data []byte, source string) (file, error) {
	var c file
	if err := config.Strict(data, &c, source); err != nil {
		return file{}, err
	}
	refuse := func(path, format string, args ...any) (file, error) {
		return file{}, &config.Error{Source: source, Path: path, Err: fmt.Errorf(format, args...)}
	}
	if c.Version != "v1" {
		return refuse("version", "%q is not known; write v1", c.Version)
	}
	for _, section := range []struct {
		path string
		keys map[string]any
	}{{"resources", c.Resources}, {"sharing", c.Sharing}, {"imex", c.Imex}} {
		for key, value := range section.keys {
			if !empty(value) {
				return refuse(section.path+"."+key, "not served yet; remove it")
			}
		}
	}
	f := c.Flags
	for _, key := range []struct {
		path   string
		value  any
		served []any
	}{
		{"flags.mpsRoot", f.MpsRoot, []any{""}},
		{"flags.gdrcopyEnabled", f.GDRCopyEnabled, []any{false}},
		{"flags.gdsEnabled", f.GDSEnabled, []any{false}},
		{"flags.mofedEnabled", f.MOFEDEnabled, []any{false}},
		{"flags.useNodeFeatureAPI", f.UseNodeFeatureAPI, []any{false}},
		{"flags.deviceDiscoveryStrategy", f.DeviceDiscoveryStrategy, []any{"", "auto", "nvml"}},
		{"flags.plugin.cdiAnnotationPrefix", f.Plugin.CDIAnnotationPrefix, []any{"", "cdi.k8s.io/"}},
		{"flags.plugin.nvidiaCTKPath", f.Plugin.NvidiaCTKPath, []any{"", "/usr/bin/nvidia-ctk"}},
		{"flags.plugin.containerDriverRoot", f.Plugin.ContainerDriverRoot, []any{"", "/driver-root"}},
		{"flags.plugin.sharedDevicesAllocationPolicy", f.Plugin.SharedDevicesAllocationPolicy, []any{""}},
		{"flags.migStrategy", value(f.MigStrategy), []any{"", "none"}},
		{"flags.plugin.deviceIDStrategy", value(f.Plugin.DeviceIDStrategy), []any{"", "uuid"}},
		{"flags.plugin.passDeviceSpecs", value(f.Plugin.PassDeviceSpecs), []any{false}},
		{"flags.plugin.deviceListStrategy", strings.Join(f.Plugin.DeviceListStrategy, ","), []any{"", "cdi-cri"}},
	} {
		if !slices.Contains(key.served, key.value) {
			return refuse(key.path, "%#v is not served yet; remove it, or write %#v", key.value, key.served[len(key.served)-1])
		}
	}
	return c, nil
}

// value is what p points to, or the zero value.
func value[T any](p *T) T {
	var v T
	if p != nil {
		v = *p
	}
	return v
}

// empty says that a part of a file sets nothing.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, w := range v {
			if !empty(w) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	case bool:
		return !v
	}
	return false
}

// readFile takes from the configuration file what neither the command line nor
// the environment has said.
func (o *options) readFile(flags *pflag.FlagSet) error {
	data, err := os.ReadFile(o.configFile)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	c, err := parseFile(data, o.configFile)
	if err != nil {
		return err
	}
	set := func(flag, value string, there bool) error {
		if !there || flags.Changed(flag) {
			return nil
		}
		return flags.Set(flag, value)
	}
	f := c.Flags
	return errors.Join(
		set("mig-strategy", value(f.MigStrategy), f.MigStrategy != nil),
		set("fail-on-init-error", fmt.Sprint(value(f.FailOnInitError)), f.FailOnInitError != nil),
		set("driver-root", value(f.NvidiaDriverRoot), f.NvidiaDriverRoot != nil),
		set("dev-root", value(f.NvidiaDevRoot), f.NvidiaDevRoot != nil),
	)
}
