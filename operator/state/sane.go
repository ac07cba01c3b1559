package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// The functions below check what the schema cannot express and Kubernetes would refuse: one
// such value would keep a whole DaemonSet out of the cluster. Each is left out and reported.

func (r *renderer) reportInvalid(field, value, instead string) {
	r.problem(progress.Prerequisites, ValueInvalid, fmt.Sprintf("spec.%s: %s is not valid in Kubernetes, and %s", field, value, instead))
}

// sanitize copies the specification without the characters that an API server refuses in
// applied objects. They are read as YAML, which allows only a few control characters.
func (r *renderer) sanitize(spec *v1.ClusterPolicySpec) error {
	r.spec = spec
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	clean := bytes.Map(func(c rune) rune {
		if c == 0x7f || c >= 0x80 && c < 0xa0 && c != 0x85 || c == 0xfffe || c == 0xffff {
			return -1
		}
		return c
	}, text)
	if len(clean) == len(text) {
		return nil
	}
	r.problem(progress.Prerequisites, ValueInvalid, "a value in spec has control characters, which no object can have: they are left out")
	r.spec = &v1.ClusterPolicySpec{}
	return json.Unmarshal(clean, r.spec)
}

// labels returns the valid labels, never nil.
func (r *renderer) labels(field string, labels map[string]string) map[string]string {
	good := map[string]string{}
	for key, value := range labels {
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			r.reportInvalid(field, fmt.Sprintf("%q: %q", key, value), "is left out")
			continue
		}
		good[key] = value
	}
	return good
}

// annotations returns the valid annotations, never nil. Their values are arbitrary.
func (r *renderer) annotations(field string, annotations map[string]string) map[string]string {
	good := map[string]string{}
	for key, value := range annotations {
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			r.reportInvalid(field, fmt.Sprintf("%q", key), "is left out")
			continue
		}
		good[key] = value
	}
	return good
}

// name returns a valid object name, or the replacement.
func (r *renderer) name(field, name, instead string) string {
	if name == "" || len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	consequence := fmt.Sprintf("%q is used", instead)
	if instead == "" {
		consequence = "is left out"
	}
	r.reportInvalid(field, fmt.Sprintf("%q", name), consequence)
	return instead
}

// env returns the valid environment variables. Of two with one name, it returns the last.
func (r *renderer) env(field string, vars []v1.EnvVar) []corev1.EnvVar {
	var good []corev1.EnvVar
	for _, v := range vars {
		if len(validation.IsRelaxedEnvVarName(v.Name)) > 0 {
			r.reportInvalid(field+".env", fmt.Sprintf("%q", v.Name), "is left out")
			continue
		}
		source, err := envSource(v)
		if err != nil {
			r.reportInvalid(field+".env", v.Name+": "+err.Error(), "is left out")
			continue
		}
		good = slices.DeleteFunc(good, func(e corev1.EnvVar) bool { return e.Name == v.Name })
		good = append(good, corev1.EnvVar{Name: v.Name, Value: v.Value, ValueFrom: source})
	}
	return good
}

// path returns a clean directory of the host that can be mounted at the same path, or "" for the
// default.
func (r *renderer) path(field string, p v1.HostPath) string {
	switch {
	case p == "":
		return ""
	case strings.ContainsAny(string(p), ":\n\x00"), !path.IsAbs(string(p)), strings.Contains(string(p)+"/", "/../"):
		r.reportInvalid(field, fmt.Sprintf("%q", p), "the default is used")
		return ""
	}
	return path.Clean(string(p))
}

// tolerations returns the valid tolerations of all operands and of one, and one for the startup
// taint.
func (r *renderer) tolerations(field string, own []corev1.Toleration) []corev1.Toleration {
	good := r.validTolerations("daemonsets.tolerations", r.spec.Daemonsets.Tolerations)
	good = append(good, r.validTolerations(field+".tolerations", own)...)
	key := r.spec.Node.StartupTaint.Key
	switch {
	case key == "":
	case len(validation.IsQualifiedName(key)) > 0:
		r.reportInvalid("node.startupTaint.key", fmt.Sprintf("%q", key), "no taint can have it")
	default:
		good = append(good, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return good
}

func (r *renderer) validTolerations(field string, all []corev1.Toleration) (good []corev1.Toleration) {
	for i, t := range all {
		if validToleration(t) {
			good = append(good, t)
		} else {
			text, _ := json.Marshal(t) // a toleration can always be encoded
			r.reportInvalid(fmt.Sprintf("%s[%d]", field, i), string(text), "is left out")
		}
	}
	return good
}

func validToleration(t corev1.Toleration) bool {
	effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	switch {
	case t.Key != "" && len(validation.IsQualifiedName(t.Key)) > 0,
		t.Key == "" && t.Operator != corev1.TolerationOpExists,
		!slices.Contains(effects, t.Effect),
		t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute:
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return t.Value == ""
	case corev1.TolerationOpEqual, "":
		return len(validation.IsValidLabelValue(t.Value)) == 0
	}
	return false
}

// setResources replaces the template's resources as a whole, as NVIDIA's operator does.
func (r *renderer) setResources(field string, c *corev1.Container, spec *v1.ResourceRequirements) {
	if spec == nil {
		return
	}
	want, err := spec.Kubernetes()
	why := invalidResources(want)
	if err != nil {
		why = err.Error()
	}
	if why != "" {
		r.reportInvalid(field+".resources", why, "the defaults are used")
		return
	}
	c.Resources = want
}

// invalidResources describes the resources that a container cannot have.
func invalidResources(want corev1.ResourceRequirements) string {
	all := map[corev1.ResourceName]bool{}
	for name := range want.Requests {
		all[name] = true
	}
	for name := range want.Limits {
		all[name] = true
	}
	var why []string
	for name := range all {
		request, requested := want.Requests[name]
		limit, limited := want.Limits[name]
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			if request.Sign() < 0 || limit.Sign() < 0 {
				why = append(why, fmt.Sprintf("a negative amount of %s", name))
			} else if requested && limited && request.Cmp(limit) > 0 {
				why = append(why, fmt.Sprintf("a request of %s of %s above the limit of %s", request.String(), name, limit.String()))
			}
		default:
			why = append(why, fmt.Sprintf("%q, of which node agents use nothing,", name))
		}
	}
	slices.Sort(why)
	return strings.Join(why, " and ")
}
