package v1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// IgnoredField is a field of NVIDIA's schema that is accepted so that policies written for NVIDIA's
// operator keep working, but that has no effect.
type IgnoredField struct {
	// Field is its path in spec, "driver.manager"; it includes all fields below it.
	Field string
	// When lists the paths of switches: unless all of them are true, the field requests nothing.
	When []string
	// Default is the schema's default, if that is not empty.
	Default string
	// Why is the reason, for people.
	Why string
}

// IgnoredFields returns all fields without an effect.
func IgnoredFields() []IgnoredField {
	const sandbox, notServed = "sandboxWorkloads.enabled", "not served"
	enabled := func(field, why string, more ...string) IgnoredField {
		return IgnoredField{Field: field, When: append([]string{field + ".enabled"}, more...), Why: why}
	}
	kept := []IgnoredField{
		{Field: "operator.defaultRuntime", Default: "docker", Why: "each node's runtime is read from the node"},
		{Field: "operator.initContainer", Why: "no init container needs CUDA"},
		{Field: "cdi.default", Why: "NVIDIA's operator does not use it any more"},
		{Field: "cdi.nriPluginEnabled", Why: "NRI is used where the runtime has it"},
		{Field: "driver.useNvidiaDriverCRD", Why: "each pool of nodes gets its own driver without further resources"},
		{Field: "driver.useOpenKernelModules", Why: "driver.kernelModuleType took its place"},
		{Field: "driver.manager", Why: "the operator itself sees to what must happen before a driver is replaced"},
		{Field: "dcgm.hostPort", Why: "NVIDIA's operator does not use it any more"},
		enabled("dcgmExporter.serviceMonitor", "create the ServiceMonitor yourself"),
		{Field: "psp", Why: "Kubernetes has no Pod Security Policies any more"},
		{Field: "psa", Why: "label the namespace yourself"},
		enabled("nodeStatusExporter", "the operator's own metrics say how far nodes are"),
		enabled("gds", notServed),
		enabled("gdrcopy", notServed),
		enabled("sandboxWorkloads", notServed),
	}
	for _, image := range []string{"repository", "image", "version", "imagePullPolicy", "imagePullSecrets", "resources", "args", "env"} {
		kept = append(kept, IgnoredField{Field: "gfd." + image, Why: "the validator writes the labels; there is no other container"})
	}
	for _, operand := range []string{"sandboxDevicePlugin", "kataSandboxDevicePlugin", "vfioManager", "vgpuManager", "vgpuDeviceManager", "kataManager", "ccManager"} {
		kept = append(kept, enabled(operand, notServed, sandbox))
	}
	for _, proof := range []string{"vfioPCI", "vgpuManager", "vgpuDevices"} {
		kept = append(kept, IgnoredField{Field: "validator." + proof, When: []string{sandbox}, Why: notServed})
	}
	return kept
}

// Unserved lists the policy's fields without an effect: those that are kept and, marked so, those
// that were dropped. It lists at most MaxUnserved.
func (p *ClusterPolicy) Unserved() []string {
	fields := Unserved(&p.Spec)
	for _, dropped := range Dropped(p) {
		fields = append(fields, dropped+" (unknown)")
	}
	for line := range strings.Lines(p.Annotations[UnservedValues]) {
		if line = strings.TrimSpace(line); line != "" && len(fields) < MaxUnserved {
			fields = append(fields, line)
		}
	}
	return fields[:min(len(fields), MaxUnserved)]
}

// Unserved lists the fields that are set but have no effect, sorted, at most MaxUnserved.
func Unserved(spec *ClusterPolicySpec) []string {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil // there is nothing in a spec that cannot be written
	}
	var object any
	if err := json.Unmarshal(text, &object); err != nil {
		return nil
	}
	var fields []string
	for _, k := range IgnoredFields() {
		off := func(path string) bool { return at(object, path) != true }
		value := at(object, k.Field)
		if isSet(value) && (k.Default == "" || value != k.Default) && !slices.ContainsFunc(k.When, off) {
			fields = append(fields, k.Field)
		}
	}
	slices.Sort(fields)
	return fields[:min(len(fields), MaxUnserved)]
}

// at returns the value at a path, or nil.
func at(object any, path string) any {
	for field := range strings.SplitSeq(path, ".") {
		fields, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = fields[field]
	}
	return object
}

// isSet reports whether a value contains anything but zero values.
func isSet(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, child := range v {
			if isSet(child) {
				return true
			}
		}
		return false
	case []any:
		return len(v) > 0
	}
	return value != nil && value != "" && value != false && value != float64(0)
}

// maxName bounds the reported name of an unknown field, in bytes: a condition's message has at
// most 32,768 characters.
const maxName = 200

// UnservedValues is the annotation in which the Helm chart names its values without effect, one
// a line.
const UnservedValues = "gpuready.io/unserved-values"

// LastApplied is the annotation in which kubectl apply stores the applied object.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Dropped lists the fields that were applied with kubectl but dropped by the API server because
// the schema does not have them. That is only possible if strict validation was disabled.
func Dropped(p *ClusterPolicy) []string {
	text := p.Annotations[LastApplied]
	if text == "" {
		return nil
	}
	var applied ClusterPolicy
	strict, err := kjson.UnmarshalStrict([]byte(text), &applied)
	if err != nil {
		return []string{fmt.Sprintf("annotation %s: %v", LastApplied, err)}
	}
	var fields []string
	for _, err := range strict {
		if name, ok := strings.CutPrefix(err.Error(), "unknown field "); ok {
			name = strings.Trim(name, `"`)
			fields = append(fields, strings.ToValidUTF8(name[:min(len(name), maxName)], ""))
		}
	}
	slices.Sort(fields)
	return fields[:min(len(fields), MaxUnserved)]
}
