package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Override describes settings that leave other fields, which the operator otherwise follows, without
// an effect. One line of status.unserved names all of these fields.
type Override struct {
	// When lists the conditions, "driver.simulated.enabled=true" or "driver.enabled!=false": all of
	// them must hold. A field that is not set has the value "".
	When []string
	// Within is the path of the part that has no effect; "": the whole spec.
	Within string
	// Except lists the fields of this part that have an effect nevertheless.
	Except []string
	// Unnamed lists the fields that are not named, such as those that NVIDIA's chart always renders.
	Unnamed []string
	// Why is the reason and the next action, in one sentence.
	Why string
}

// imageFields are the fields that NVIDIA's chart renders for each operand, enabled or not.
var imageFields = []string{"repository", "image", "version", "imagePullPolicy", "imagePullSecrets"}

// renderedDriver are the fields of the driver that NVIDIA's chart always renders.
var renderedDriver = slices.Concat(imageFields, []string{"startupProbe", "livenessProbe", "readinessProbe", "licensingConfig", "upgradePolicy"})

// Overrides returns the settings of a policy that leave others without an effect.
func Overrides() []Override {
	all := []Override{
		{
			When: []string{"driver.enabled=false"}, Within: "driver", Except: []string{"enabled"}, Unnamed: renderedDriver,
			Why: "driver.enabled is false, and nodes have the driver of their host: remove the fields",
		},
		{
			When: []string{"driver.enabled!=false", "driver.useNvidiaDriverCRD=true"}, Within: "driver",
			Except: []string{"enabled", "useNvidiaDriverCRD", "upgradePolicy"}, Unnamed: append(slices.Clone(renderedDriver), "simulated"), // the validator reads it
			Why: "driver.useNvidiaDriverCRD leaves drivers to NVIDIADrivers: set the fields there",
		},
		{
			When: []string{"driver.enabled!=false", "driver.useNvidiaDriverCRD!=true", "driver.simulated.enabled=true"}, Within: "driver",
			Except: slices.Concat(podFields, []string{"enabled", "useNvidiaDriverCRD", "simulated", "upgradePolicy"}),
			Why:    "the simulated driver has no driver image, version or kernel modules: remove the fields, or set driver.simulated.enabled to false",
		},
		{
			When: []string{"driver.simulated.enabled!=true"}, Within: "driver.simulated", Except: []string{"enabled"},
			Why: "the driver is not the simulated one: set driver.simulated.enabled to true, or remove the fields",
		},
		{
			When: []string{"driver.enabled!=false", "driver.upgradePolicy.autoUpgrade!=true"}, Within: "driver.upgradePolicy",
			Why: "limits and evictions are for automatic upgrades only: set driver.upgradePolicy.autoUpgrade to true",
		},
		{
			When: []string{"driver.upgradePolicy.autoUpgrade=true", "driver.upgradePolicy.drain.enable!=true"}, Within: "driver.upgradePolicy.drain",
			Why: "a node is not drained: set driver.upgradePolicy.drain.enable to true",
		},
		{
			When: []string{"driver.rdma.enabled!=true"}, Within: "driver.rdma",
			Why: "GPUDirect RDMA is off: set driver.rdma.enabled to true",
		},
	}
	for _, operand := range []struct {
		name     string
		rendered []string
	}{
		{"toolkit", []string{"env", "installDir"}},
		{"devicePlugin", []string{"env", "mps"}},
		{"dcgm", []string{"hostPort"}},
		{"dcgmExporter", []string{"env", "serviceMonitor", "service", "hpcJobMapping"}},
		{"migManager", []string{"env", "config", "gpuClientsConfig"}},
	} {
		all = append(all, Override{
			When: []string{operand.name + ".enabled=false"}, Within: operand.name, Except: []string{"enabled"}, Unnamed: slices.Concat(imageFields, operand.rendered),
			Why: operand.name + ".enabled is false: remove the fields",
		})
	}
	for _, operand := range []string{"dcgm", "dcgmExporter", "migManager"} {
		all = append(all, Override{
			When: []string{operand + ".enabled=", operand + ".image="}, Within: operand,
			Why: operand + " is deployed only if enabled or image is set: set " + operand + ".enabled to true",
		})
	}
	return append(all, Override{
		When: []string{"draDriver.enabled!=true"}, Within: "draDriver", Except: []string{"enabled", "servePolicy"}, // it limits the way back
		Why: "the DRA driver is off: set draDriver.enabled to true, or remove the fields",
	})
}

// defaults maps the end of a field's path to the value that the custom resource definition fills in,
// or to a value of the same meaning. A field with its default requests nothing.
var defaults = map[string]string{
	"kernelModuleType": "auto", "driverType": "gpu", "imagePullPolicy": "IfNotPresent", "precompiledFallback": FallbackNone, "installDir": "/usr/local/nvidia",
	"maxParallelUpgrades": "1", "maxUnavailable": "25%", "podDeletion.timeoutSeconds": "300", "drain.timeoutSeconds": "300",
	"image": "nvcr.io/nvidia/driver", "mps.root": "/run/nvidia/mps", "config.name": "default-mig-parted-config", "config.default": "all-disabled",
}

// maxFields bounds the fields that a line names, in bytes: with its reason, a line of the status has
// at most 300.
const maxFields = 130

// line returns the line about a spec: "driver.version, driver.env and 2 more: the simulated driver
// has …"; "" if it names no field.
func (o Override) line(spec any, ignored []IgnoredField) string {
	fields := o.fieldsIn(spec, ignored)
	if len(fields) == 0 {
		return ""
	}
	named := fields[0]
	for i, field := range fields[1:] {
		if len(named)+len(", ")+len(field) > maxFields {
			named += fmt.Sprintf(" and %d more", len(fields)-1-i)
			break
		}
		named += ", " + field
	}
	return named + ": " + o.Why
}

// fieldsIn returns the paths of the fields of a spec that the override leaves without an effect: the
// fields of the image first, then the others, each sorted. It skips ignored fields, which have lines
// of their own.
func (o Override) fieldsIn(spec any, ignored []IgnoredField) (fields []string) {
	if slices.ContainsFunc(o.When, func(condition string) bool { return !holds(condition, spec) }) {
		return nil
	}
	part := spec
	if o.Within != "" {
		part = at(spec, o.Within)
	}
	object, _ := part.(map[string]any)
	byRank := func(a, b string) int {
		isA, isB := slices.Contains(imageFields, a), slices.Contains(imageFields, b)
		switch {
		case isA == isB:
			return strings.Compare(a, b)
		case isA:
			return -1
		}
		return 1
	}
	for _, name := range slices.SortedFunc(maps.Keys(object), byRank) {
		path := strings.TrimPrefix(o.Within+"."+name, ".")
		isIgnored := slices.ContainsFunc(ignored, func(f IgnoredField) bool { return f.Field == path })
		if !isIgnored && !slices.Contains(o.Except, name) && !slices.Contains(o.Unnamed, name) && isRequested(path, object[name]) {
			fields = append(fields, path)
		}
	}
	return fields
}

// holds reports whether a condition of an Override is true of a spec.
func holds(condition string, spec any) bool {
	path, want, _ := strings.Cut(condition, "=")
	path, unequal := strings.CutSuffix(path, "!")
	have := ""
	if value := at(spec, path); value != nil {
		have = fmt.Sprint(value)
	}
	return (have == want) != unequal
}

// isRequested reports whether the value at a path contains anything but zero values and defaults.
func isRequested(path string, value any) bool {
	if fields, is := value.(map[string]any); is {
		for name, child := range fields {
			if isRequested(path+"."+name, child) {
				return true
			}
		}
		return false
	}
	for end, byDefault := range defaults {
		if (path == end || strings.HasSuffix(path, "."+end)) && fmt.Sprint(value) == byDefault {
			return false
		}
	}
	return isSet(value)
}
