package verify

import (
	"fmt"
	"slices"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// policyName is the name of the policy and of its binding.
const policyName = "gpuready-verified-release"

// Policy returns the manifest of an admission policy by which the pods of a namespace run only images
// of a release, by their digests. A policy of Kubernetes cannot verify signatures: whoever applies it
// has verified the release, and it holds the cluster to the result.
func Policy(r contents.Release, namespace string) ([]byte, error) {
	var digests []string
	for _, a := range r.Artifacts {
		if a.Kind != contents.Chart {
			digests = append(digests, a.Digests()...)
		}
	}
	slices.Sort(digests)
	digests = slices.Compact(digests)
	if len(digests) == 0 {
		return nil, fmt.Errorf("the release %s has no images", r.Version)
	}
	const image = `(has(c.image) && c.image.contains('@') && c.image.split('@')[1] in variables.digests)`
	fail, deny, equivalent := admission.Fail, admission.Deny, admission.Equivalent
	policy := admission.ValidatingAdmissionPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        policyName,
			Labels:      map[string]string{"app.kubernetes.io/part-of": "gpuready", "app.kubernetes.io/version": r.Version},
			Annotations: map[string]string{"kubernetes.io/description": "Pods run only images of the verified release " + r.Version + " of gpuready, by digest."},
		},
		Spec: admission.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admission.MatchResources{
				MatchPolicy:       &equivalent,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{namespaceLabel: namespace}},
				ResourceRules: []admission.NamedRuleWithOperations{{RuleWithOperations: admission.RuleWithOperations{
					Operations: []admission.OperationType{admission.Create, admission.Update},
					Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/ephemeralcontainers"}},
				}}},
			},
			// Pods from before, of other releases, may still be deleted and labelled.
			MatchConditions: []admission.MatchCondition{{Name: "new-or-changed", Expression: "request.operation == 'CREATE' || object.spec != oldObject.spec"}},
			Variables:       []admission.Variable{{Name: "digests", Expression: "['" + strings.Join(digests, "', '") + "']"}},
			Validations: []admission.Validation{
				{
					Expression: "object.spec.containers.all(c, " + image + ")" +
						" && (!has(object.spec.initContainers) || object.spec.initContainers.all(c, " + image + "))" +
						" && (!has(object.spec.ephemeralContainers) || object.spec.ephemeralContainers.all(c, " + image + "))",
					Message: "an image is not of the verified release " + r.Version + " of gpuready, or not named by its digest; verify the release that has it, and apply the policy that `release verify -o policy` prints",
				},
			},
		},
	}
	binding := admission.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: policyName, Labels: policy.Labels},
		Spec:       admission.ValidatingAdmissionPolicyBindingSpec{PolicyName: policyName, ValidationActions: []admission.ValidationAction{deny}},
	}
	one, err := yaml.Marshal(policy)
	if err != nil {
		return nil, err
	}
	two, err := yaml.Marshal(binding)
	if err != nil {
		return nil, err
	}
	return []byte(string(one) + "---\n" + string(two)), nil
}

// namespaceLabel is the label with a namespace's name.
const namespaceLabel = "kubernetes.io/metadata.name"
