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
	// Without is the path of another field without which this one has no effect; if that is set,
	// this one is served.
	Without string
	// Default is the value that needs no report: the schema's default, or what happens anyway.
	Default string
	// Why is the reason and the next action, in one sentence.
	Why string
}

// Reasons of several ignored fields.
const (
	whySandbox  = "gpuready serves containers only: keep NVIDIA's operator for nodes with virtual machines"
	whyFeatures = "the validator writes the feature labels and there is no other container: remove the field"
	whyRights   = "the container has exactly the rights that it needs: remove the field"
	whyProbe    = "Kubernetes accepts only 1 for this probe: remove the field"
)

// containerFields and podFields are the fields of ContainerSpec and PodSpec.
var (
	containerFields = []string{"repository", "image", "version", "imagePullPolicy", "imagePullSecrets", "resources", "args", "env"}
	podFields       = []string{"labels", "annotations", "nodeSelector", "affinity", "tolerations", "priorityClassName", "podSecurityContext", "securityContext", "hostNetwork"}
)

// IgnoredFields returns all fields without an effect.
func IgnoredFields() []IgnoredField {
	const sandbox = "sandboxWorkloads.enabled"
	enabled := func(field, why string, more ...string) IgnoredField {
		return IgnoredField{Field: field, When: append([]string{field + ".enabled"}, more...), Why: why}
	}
	all := []IgnoredField{
		{Field: "operator.defaultRuntime", Default: "docker", Why: "each node's runtime is read from the node: remove the field"},
		{Field: "operator.initContainer", Why: "no init container needs CUDA: remove the field"},
		{Field: "operator.metrics", Why: "the chart scrapes the operator: helm upgrade --reuse-values --set podMonitor.enabled=true"},
		{Field: "operator.validator", Why: "the policy's own part validator took its place: move the fields there"},
		{Field: "operator.deployGFD", Why: "gfd.enabled took its place: set that instead"},
		{Field: "cdi.default", Why: "GPUs are given by CDI wherever the runtime can: remove the field"},
		{Field: "cdi.nriPluginEnabled", Why: "NRI is used wherever the runtime has it: remove the field"},
		{Field: "driver.useOpenKernelModules", Why: "driver.kernelModuleType took its place: set that to open"},
		{Field: "driver.use_ocp_driver_toolkit", Why: "operator.use_ocp_driver_toolkit took its place: set that instead"},
		{Field: "driver.rollingUpdate", Why: "driver.upgradePolicy took its place: set driver.upgradePolicy.maxUnavailable"},
		{Field: "driver.manager", Why: "the operator itself clears a node before its driver is replaced: set driver.upgradePolicy"},
		{Field: "driver.securityContext", Why: whyRights},
		{Field: "driver.startupProbe.successThreshold", Default: "1", Why: whyProbe},
		{Field: "driver.livenessProbe.successThreshold", Default: "1", Why: whyProbe},
		{Field: "toolkit.securityContext", Why: whyRights},
		{Field: "devicePlugin.securityContext", Why: whyRights},
		{Field: "devicePlugin.config.default", Without: "devicePlugin.config.name", Why: "it is a key of a ConfigMap: set devicePlugin.config.name to that ConfigMap's name"},
		{Field: "draDriver.securityContext", Why: whyRights},
		{Field: "validator.securityContext", Why: whyRights},
		{Field: "dcgm.hostPort", Why: "the exporter finds DCGM by the Service nvidia-dcgm: for the host's port 5555 set dcgm.hostNetwork"},
		{Field: "gfd.discoveryIntervalSeconds", Why: whyFeatures},
		{Field: "gfd.migStrategy", Why: "mig.strategy took its place: set that instead"},
		{Field: "psp", When: []string{"psp.enabled"}, Why: "Kubernetes has no Pod Security Policies any more: remove the field"},
		{Field: "psa", When: []string{"psa.enabled"}, Why: "namespaces are labelled by those who own them: kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged"},
		enabled("nodeStatusExporter", "the operator's own metrics and this status tell how far nodes are: set nodeStatusExporter.enabled to false"),
		enabled("gds", "gpuready has no container for nvidia-fs: install nvidia-fs on the hosts, or use an image of the driver that contains it"),
		enabled("gdrcopy", "gpuready has no container for gdrdrv: install gdrdrv on the hosts, or use an image of the driver that contains it"),
		enabled("sandboxWorkloads", whySandbox),
	}
	for _, name := range slices.Concat(containerFields, podFields) {
		all = append(all, IgnoredField{Field: "gfd." + name, Why: whyFeatures})
	}
	for _, operand := range []string{"toolkit", "devicePlugin", "dcgmExporter"} {
		all = append(all,
			IgnoredField{Field: operand + ".repoConfig", Why: "only drivers are built from packages: set driver.repoConfig"},
			IgnoredField{Field: operand + ".licensingConfig", Why: "only drivers have licences: set driver.licensingConfig"})
	}
	for _, operand := range []string{"sandboxDevicePlugin", "kataSandboxDevicePlugin", "vfioManager", "vgpuManager", "vgpuDeviceManager", "kataManager", "ccManager"} {
		all = append(all, enabled(operand, whySandbox, sandbox))
	}
	for _, proof := range []string{"vfioPCI", "vgpuManager", "vgpuDevices"} {
		all = append(all, IgnoredField{Field: "validator." + proof, When: []string{sandbox}, Why: whySandbox})
	}
	return all
}

// Unserved lists the policy's fields without an effect, each with the reason and the next action:
// "driver.manager: the operator itself …". It includes fields that the API server has dropped. It
// lists at most MaxUnserved.
func (p *ClusterPolicy) Unserved() []string {
	lines := Unserved(&p.Spec)
	for _, dropped := range Dropped(p) {
		lines = append(lines, dropped+": the definition of policies has no such field: correct its name, or remove it")
	}
	for line := range strings.Lines(p.Annotations[UnservedValues]) {
		if line = strings.TrimSpace(line); line != "" && len(lines) < MaxUnserved {
			lines = append(lines, line)
		}
	}
	return lines[:min(len(lines), MaxUnserved)]
}

// Unserved lists the fields that are set but have no effect, each with the reason and the next
// action, sorted, at most MaxUnserved.
func Unserved(spec *ClusterPolicySpec) []string {
	return UnservedFields(spec, IgnoredFields(), Overrides())
}

// UnservedFields lists the ignored and the overridden fields that a spec sets, in the form of
// Unserved.
func UnservedFields(spec any, ignored []IgnoredField, overrides []Override) []string {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil // a decoded object can always be encoded
	}
	var object any
	if err := json.Unmarshal(text, &object); err != nil {
		return nil
	}
	var lines []string
	for _, field := range ignored {
		if field.isSetIn(object) {
			lines = append(lines, field.Field+": "+field.Why)
		}
	}
	for _, o := range overrides {
		if line := o.line(object, ignored); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines[:min(len(lines), MaxUnserved)]
}

// isSetIn reports whether the field requests something in a spec.
func (f IgnoredField) isSetIn(spec any) bool {
	value := at(spec, f.Field)
	off := func(path string) bool { return at(spec, path) != true }
	switch {
	case !isSet(value), f.Default != "" && fmt.Sprint(value) == f.Default, slices.ContainsFunc(f.When, off):
		return false
	}
	return f.Without == "" || !isSet(at(spec, f.Without))
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
