package config

import (
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/suggest"
)

// MIG strategies.
const (
	MIGNone   = "none"
	MIGSingle = "single"
	MIGMixed  = "mixed"
)

// Device list strategies: how containers get their devices.
const (
	ListCDI         = "cdi-cri"
	ListAnnotations = "cdi-annotations"
	ListVariable    = "envvar"
	ListMounts      = "volume-mounts"
)

// Flags are the settings that also have a flag and an environment variable. nil means
// not set.
type Flags struct {
	MigStrategy             *string     `json:"migStrategy,omitempty" enum:"none single mixed" doc:"How MIG devices are advertised. none: not at all, each GPU is one device; single: as nvidia.com/gpu, when all GPUs are divided into equal parts; mixed: as nvidia.com/mig-<profile>. Default: none."`
	FailOnInitError         *bool       `json:"failOnInitError,omitempty" doc:"End, rather than wait, when the driver is there and does not work. Default: true."`
	MpsRoot                 *string     `json:"mpsRoot,omitempty" format:"path" doc:"Host folder of the MPS control daemon's files. Default: /run/nvidia/mps."`
	NvidiaDriverRoot        *string     `json:"nvidiaDriverRoot,omitempty" format:"path" doc:"Host path of the driver's root. Default: /run/nvidia/driver where it holds a driver, else /."`
	NvidiaDevRoot           *string     `json:"nvidiaDevRoot,omitempty" format:"path" doc:"Host path of the device nodes' root; NVML finds them itself. Default: that of the driver."`
	GDRCopyEnabled          *bool       `json:"gdrcopyEnabled,omitempty" doc:"Give containers GDRCopy. Default: false."`
	GDSEnabled              *bool       `json:"gdsEnabled,omitempty" doc:"Give containers GPUDirect Storage. Default: false."`
	MOFEDEnabled            *bool       `json:"mofedEnabled,omitempty" doc:"Give containers Mellanox OFED. Default: false."`
	UseNodeFeatureAPI       *bool       `json:"useNodeFeatureAPI,omitempty" doc:"For the feature discovery, which shares the file. No effect here."`
	DeviceDiscoveryStrategy *string     `json:"deviceDiscoveryStrategy,omitempty" enum:"auto nvml tegra" doc:"How GPUs are found. tegra is refused: NVML does not know integrated GPUs. Default: auto."`
	Plugin                  PluginFlags `json:"plugin" doc:"Settings of the device plugin alone."`
	GFD                     GFDFlags    `json:"gfd" doc:"Settings of the feature discovery, which shares the file."`
}

// PluginFlags are the settings of the device plugin alone.
type PluginFlags struct {
	PassDeviceSpecs               *bool      `json:"passDeviceSpecs,omitempty" doc:"Pass the device nodes besides, for the kubelet's static CPU manager. Default: false."`
	DeviceListStrategy            StringList `json:"deviceListStrategy,omitempty" enum:"cdi-cri cdi-annotations envvar volume-mounts" doc:"How containers get their devices, one or several. Default: cdi-cri."`
	DeviceIDStrategy              *string    `json:"deviceIDStrategy,omitempty" enum:"uuid index" doc:"What names a device to the container runtime. Default: uuid."`
	CDIAnnotationPrefix           *string    `json:"cdiAnnotationPrefix,omitempty" doc:"Prefix of the annotations of cdi-annotations. Default: cdi.k8s.io/."`
	NvidiaCTKPath                 *string    `json:"nvidiaCTKPath,omitempty" format:"path" doc:"Host path of the reference's CDI hook. No effect here: the toolkit writes the CDI specs. Default: /usr/bin/nvidia-ctk."`
	ContainerDriverRoot           *string    `json:"containerDriverRoot,omitempty" format:"path" doc:"Where the reference's container has the driver's root. No effect here. Default: /driver-root."`
	SharedDevicesAllocationPolicy *string    `json:"sharedDevicesAllocationPolicy,omitempty" enum:"distributed packed" doc:"Which replicas and MIG devices are preferred: distributed over the GPUs, or packed onto few. Default: distributed."`
}

// GFDFlags are for the feature discovery, which shares the file with the device plugin.
// They are decoded to find misspelt keys. Only NoTimestamp and MachineTypeFile are used.
type GFDFlags struct {
	Oneshot         *bool     `json:"oneshot,omitempty" doc:"No effect here."`
	NoTimestamp     *bool     `json:"noTimestamp,omitempty" doc:"Leave out the label nvidia.com/gfd.timestamp. Default: false."`
	SleepInterval   *Duration `json:"sleepInterval,omitempty" doc:"No effect here."`
	OutputFile      *string   `json:"outputFile,omitempty" doc:"No effect here."`
	MachineTypeFile *string   `json:"machineTypeFile,omitempty" doc:"File with the product name of the machine, for the label nvidia.com/gpu.machine. Default: /sys/class/dmi/id/product_name."`
}

// MIG returns the MIG strategy; the default is none.
func (f Flags) MIG() string {
	if f.MigStrategy == nil {
		return MIGNone
	}
	return *f.MigStrategy
}

// Strategies returns the device list strategies; the default is cdi-cri.
func (p PluginFlags) Strategies() []string {
	if len(p.DeviceListStrategy) == 0 {
		return []string{ListCDI}
	}
	return p.DeviceListStrategy
}

// CDI reports whether containers get their devices by CDI names.
func (p PluginFlags) CDI() bool {
	return slices.Contains(p.Strategies(), ListCDI) || slices.Contains(p.Strategies(), ListAnnotations)
}

// ByIndex reports whether devices are named to the container runtime by index.
func (p PluginFlags) ByIndex() bool {
	return p.DeviceIDStrategy != nil && *p.DeviceIDStrategy == "index"
}

// Packed reports whether shared devices and MIG devices are packed onto few GPUs.
func (p PluginFlags) Packed() bool {
	return p.SharedDevicesAllocationPolicy != nil && *p.SharedDevicesAllocationPolicy == "packed"
}

// override returns f with the fields that are set in g in place of its own.
func (f Flags) override(g Flags) Flags {
	overlay(reflect.ValueOf(&f).Elem(), reflect.ValueOf(g))
	return f
}

// overlay replaces the fields of a struct by those of another that are set.
func overlay(below, above reflect.Value) {
	for i := range above.NumField() {
		field := above.Field(i)
		switch {
		case field.Kind() == reflect.Struct:
			overlay(below.Field(i), field)
		case !field.IsNil():
			below.Field(i).Set(field)
		}
	}
}

// annotationPrefix is the prefix of a Kubernetes annotation, with its slash.
var annotationPrefix = compileOnce(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/$`)

// checkFlags checks what the tags of Flags do not say.
func (p *problems) checkFlags(f Flags) {
	if prefix := f.Plugin.CDIAnnotationPrefix; prefix != nil && !annotationPrefix().MatchString(*prefix) {
		p.add("flags.plugin.cdiAnnotationPrefix", "%q is not an annotation prefix; write one that ends in a slash, as cdi.k8s.io/", *prefix)
	}
	at := "flags.plugin.deviceListStrategy"
	list := f.Plugin.DeviceListStrategy
	if list != nil && len(list) == 0 {
		p.add(at, "empty; write cdi-cri or remove it")
	}
	for i, strategy := range list {
		if slices.Contains(list[:i], strategy) {
			p.add(at, "%q is listed twice; remove one", strategy)
		}
	}
}

// StringList may be written as a list, or as one string with commas.
type StringList []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *StringList) UnmarshalJSON(data []byte) error {
	var joined string
	if err := json.Unmarshal(data, &joined); err == nil {
		*l = nil
		for word := range strings.SplitSeq(joined, ",") {
			*l = append(*l, strings.TrimSpace(word))
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}

// Duration is written as "5m", or as a number of nanoseconds.
type Duration struct {
	time.Duration
	invalid string // a text that is no duration, as written; "": it is valid
}

// UnmarshalJSON implements json.Unmarshaler. It accepts any value, so that a later check can
// report an error with the path of the field.
func (d *Duration) UnmarshalJSON(data []byte) error {
	*d = Duration{}
	if json.Unmarshal(data, &d.Duration) == nil {
		return nil
	}
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	var err error
	if d.Duration, err = time.ParseDuration(text); err != nil {
		d.invalid = text
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// checkTags checks a value by the tag of its field: with enum it must be one of those listed, with
// format:"path" an absolute path. An empty string that is not a pointer counts as not set. at is
// the path of the field in the file.
func (p *problems) checkTags(v reflect.Value, at string, tag reflect.StructTag) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			p.checkTags(v.Elem(), at, tag)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if !field.IsExported() || field.Anonymous || value.Kind() == reflect.String && value.IsZero() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			p.checkTags(value, strings.TrimPrefix(at+"."+name, "."), field.Tag)
		}
	case reflect.Slice:
		for i := range v.Len() {
			p.checkTags(v.Index(i), fmt.Sprintf("%s[%d]", at, i), tag)
		}
	case reflect.String:
		text, known := v.String(), strings.Fields(tag.Get("enum"))
		if len(known) > 0 && !slices.Contains(known, text) {
			p.add(at, "%q is not known%s", text, suggest.Hint(text, known))
		}
		if tag.Get("format") == "path" && text != "" && !path.IsAbs(text) {
			p.add(at, "path %q must be absolute", text)
		}
	}
}
