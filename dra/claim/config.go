package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/config"
)

// The API of the configuration that claims and DeviceClasses may carry for this driver: NVIDIA's
// (api/nvidia.com/resource/v1beta1 of k8s-dra-driver-gpu).
const (
	configVersion = "resource.nvidia.com/v1beta1"
	kindGPU       = "GpuConfig"
	kindMIG       = "MigDeviceConfig"
)

// deviceConfig has the fields of GpuConfig and MigDeviceConfig.
type deviceConfig struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Sharing    *sharing `json:"sharing,omitempty"`
}

type sharing struct {
	Strategy    string       `json:"strategy"`
	TimeSlicing *timeSlicing `json:"timeSlicingConfig,omitempty"`
	MPS         *mps         `json:"mpsConfig,omitempty"`
}

type timeSlicing struct {
	Interval *string `json:"interval,omitempty"`
}

// mps has the fields of MpsConfig. They are decoded so that a mistake in one is named; none is served, as
// the node's control daemon sets the limits.
type mps struct {
	ThreadPercentage *int                       `json:"defaultActiveThreadPercentage,omitempty"`
	MemoryLimit      *json.RawMessage           `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	PerDeviceLimit   map[string]json.RawMessage `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
}

// The sharing strategies, and the one interval that needs no change of the GPU.
const (
	strategyTimeSlicing = "TimeSlicing"
	strategyMPS         = "MPS"
	intervalDefault     = "Default"
)

// parseConfig decodes the parameters of an opaque configuration. Everything that it does not know is
// an error, with the path of the field.
func parseConfig(data []byte) (deviceConfig, error) {
	// The version first: a configuration of another version has other fields.
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return deviceConfig{}, fmt.Errorf("parameters: %w", err)
	}
	if head.APIVersion != configVersion {
		return deviceConfig{}, fmt.Errorf("parameters.apiVersion: %.80q is not known here, only %s", head.APIVersion, configVersion)
	}
	if head.Kind != kindGPU && head.Kind != kindMIG {
		return deviceConfig{}, fmt.Errorf("parameters.kind: %.80q is not known here, only %s and %s", head.Kind, kindGPU, kindMIG)
	}
	var c deviceConfig
	if err := config.Strict(data, &c, "parameters"); err != nil {
		return deviceConfig{}, fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return c, c.check()
}

// check refuses what this driver cannot do, rather than to ignore it.
func (c deviceConfig) check() error {
	s := c.Sharing
	if s == nil {
		return nil
	}
	switch {
	case s.Strategy == strategyMPS:
		return c.checkMPS()
	case s.Strategy != strategyTimeSlicing:
		return fmt.Errorf("parameters.sharing.strategy: %.80q is not known here, only %s and %s", s.Strategy, strategyTimeSlicing, strategyMPS)
	case s.MPS != nil:
		return fmt.Errorf("parameters.sharing.mpsConfig: does not belong to the strategy %s", strategyTimeSlicing)
	case s.TimeSlicing != nil && c.Kind == kindMIG:
		return fmt.Errorf("parameters.sharing.timeSlicingConfig: a MIG device has none")
	case s.TimeSlicing != nil && s.TimeSlicing.Interval != nil && *s.TimeSlicing.Interval != intervalDefault:
		return fmt.Errorf("parameters.sharing.timeSlicingConfig.interval: %.80q is not served, only %s: another one needs root on the GPU, and holds for all its programs; next: leave it out, or set it on the node by nvidia-smi compute-policy", *s.TimeSlicing.Interval, intervalDefault)
	}
	return nil
}

// checkMPS refuses limits of a claim's own.
func (c deviceConfig) checkMPS() error {
	const next = "next: leave it out; each client has its part of the memory and the threads by the number of replicas in sharing.mps of the device plugin's configuration"
	switch m := c.Sharing.MPS; {
	case c.Kind == kindMIG:
		return fmt.Errorf("parameters.sharing.strategy: MPS shares no MIG device here; next: use %s, or leave sharing out", strategyTimeSlicing)
	case c.Sharing.TimeSlicing != nil:
		return fmt.Errorf("parameters.sharing.timeSlicingConfig: does not belong to the strategy %s", strategyMPS)
	case m == nil:
		return nil
	case m.ThreadPercentage != nil:
		return fmt.Errorf("parameters.sharing.mpsConfig.defaultActiveThreadPercentage: a claim has no limits of its own; %s", next)
	case m.MemoryLimit != nil:
		return fmt.Errorf("parameters.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: a claim has no limits of its own; %s", next)
	case m.PerDeviceLimit != nil:
		return fmt.Errorf("parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: a claim has no limits of its own; %s", next)
	}
	return nil
}

// checkConfigs checks the configurations for this driver that an allocation carries. Those of the
// claim come after those of the class, and the last one for a device counts.
func (n node) checkConfigs(allocated resourceapi.DeviceAllocationResult, devices []PreparedDevice) error {
	failures := make([]error, len(devices)) // why the last configuration for each device cannot be served
	for _, one := range allocated.Config {
		if one.Opaque == nil || one.Opaque.Driver != inventory.Driver {
			continue
		}
		fail := func(err error) error {
			from := "of the claim"
			if one.Source == resourceapi.AllocationConfigSourceClass {
				from = "of the DeviceClass"
			}
			return fmt.Errorf("configuration %s for %s: %w", from, requestNames(one.Requests), err)
		}
		c, err := parseConfig(one.Opaque.Parameters.Raw)
		if err != nil {
			return fail(err)
		}
		for i, d := range devices {
			named := slices.ContainsFunc(one.Requests, func(r string) bool { return isRequest(r, d.Request) })
			isMIG := d.Parent != ""
			switch {
			case len(one.Requests) > 0 && !named:
			case isMIG == (c.Kind == kindMIG):
				failures[i] = nil
				if err := c.checkDevice(n.inventory, d); err != nil {
					failures[i] = fail(err)
				}
			case named: // one for all requests concerns the devices of its kind
				return fail(fmt.Errorf("parameters.kind: %s does not fit device %s of request %s; next: write %s", c.Kind, d.Name, d.Request, kindFor(isMIG)))
			}
		}
	}
	return errors.Join(failures...)
}

// checkDevice refuses a way of sharing that the device has not.
func (c deviceConfig) checkDevice(inv inventory.Inventory, d PreparedDevice) error {
	if d.isPrepared() {
		return nil // it stays as it is, whatever the device plugin's configuration says by now
	}
	device, _ := inv.FindAny(d.Name)
	switch s := c.Sharing; {
	case s == nil:
	case s.Strategy == strategyMPS && device.MPS == "":
		return fmt.Errorf("parameters.sharing.strategy: no MPS control daemon serves device %s; next: share the GPU by sharing.mps of the device plugin's configuration on this node, and run mps.yaml; or use %s", d.Name, strategyTimeSlicing)
	case s.Strategy == strategyTimeSlicing && device.MPS != "":
		return fmt.Errorf("parameters.sharing.strategy: device %s is shared by MPS on this node; next: leave sharing out, or use %s", d.Name, strategyMPS)
	}
	return nil
}

// requestNames returns the requests that a configuration is for, as people know it by them.
func requestNames(requests []string) string {
	switch len(requests) {
	case 0:
		return "all requests"
	case 1:
		return "request " + requests[0]
	}
	return "requests " + strings.Join(requests, ", ")
}

// isRequest reports whether a configuration for a request is for the request of a result, which
// names a subrequest, too, if there is one: "gpu/big".
func isRequest(configured, allocated string) bool {
	main, _, _ := strings.Cut(allocated, "/")
	return configured == allocated || configured == main
}

func kindFor(isMIG bool) string {
	if isMIG {
		return kindMIG
	}
	return kindGPU
}
