package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

const (
	deployments = "../../../deployments/static/"
	madePods    = "../../../validator/workload/testdata/"
	validator   = "system:serviceaccount:gpuready:gpu-validator"
	migManager  = "system:serviceaccount:gpuready-system:gpu-mig-manager"
	nodeKey     = "authentication.kubernetes.io/node-name"
	podKey      = "authentication.kubernetes.io/pod-name"
	podUIDKey   = "authentication.kubernetes.io/pod-uid"
)

// manifests lists the static manifests with policies.
var manifests = []string{deployments + "gpuready.yaml", deployments + "mig-manager.yaml", deployments + "dra-driver.yaml"}

// The oldest Kubernetes that has these policies, and ours.
var versions = []*version.Version{version.MajorMinor(1, 30), environment.DefaultCompatibilityVersion()}

// policies reads the policies of all manifests.
func policies(t *testing.T) []*admissionregistration.ValidatingAdmissionPolicy {
	t.Helper()
	all := decode(t, "ValidatingAdmissionPolicy", func() *admissionregistration.ValidatingAdmissionPolicy {
		return &admissionregistration.ValidatingAdmissionPolicy{}
	})
	require.Len(t, all, 7)
	return all
}

// decode returns the manifests' objects of a kind.
func decode[T runtime.Object](t *testing.T, kind string, empty func() T) (all []T) {
	t.Helper()
	for _, name := range manifests {
		file, err := os.Open(name)
		require.NoError(t, err)
		defer file.Close()
		reader := yaml.NewYAMLOrJSONDecoder(file, 4096)
		for {
			o := empty()
			err := reader.Decode(o)
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && o.GetObjectKind().GroupVersionKind().Kind == kind {
				all = append(all, o)
			}
		}
	}
	return all
}

var validators *appsv1.DaemonSet

// daemonSet returns the validator's DaemonSet once all its pods are of this version, to
// which the policy of the pods' fields is bound.
func daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	if validators != nil {
		return validators.DeepCopy()
	}
	for _, d := range decode(t, "DaemonSet", func() *appsv1.DaemonSet { return &appsv1.DaemonSet{} }) {
		if d.Name == "nvidia-operator-validator" {
			d.Generation = 2
			d.Status = appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3}
			validators = d
			return d.DeepCopy()
		}
	}
	t.Fatal("the manifests have no validator")
	return nil
}

// bound is a policy, compiled for a version of Kubernetes.
type bound struct {
	validating.Validator
	rules  []admissionregistration.NamedRuleWithOperations
	params bool
}

// matches reports whether the policy applies to an operation on a resource.
func (b bound) matches(operation admission.Operation, resource string) bool {
	whole, _, sub := strings.Cut(resource, "/")
	return slices.ContainsFunc(b.rules, func(r admissionregistration.NamedRuleWithOperations) bool {
		return (slices.Contains(r.Operations, admissionregistration.OperationAll) || slices.Contains(r.Operations, admissionregistration.OperationType(operation))) &&
			(slices.Contains(r.Resources, resource) || sub && slices.Contains(r.Resources, whole+"/*"))
	})
}

var compiled = map[*version.Version][]bound{}

// all returns the policies compiled for a version of Kubernetes.
func all(t *testing.T, v *version.Version) []bound {
	t.Helper()
	if compiled[v] == nil {
		for _, p := range policies(t) {
			compiled[v] = append(compiled[v], bound{compile(t, p, v), p.Spec.MatchConstraints.ResourceRules, p.Spec.ParamKind != nil})
		}
	}
	return compiled[v]
}

// compile creates a validator as the API server does.
func compile(t *testing.T, p *admissionregistration.ValidatingAdmissionPolicy, v *version.Version) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(v))
	require.NoError(t, err)
	vars := cel.OptionalVariableDeclarations{HasAuthorizer: true, HasParams: p.Spec.ParamKind != nil}
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, vars, environment.NewExpressions)
	var conditions, rules []cel.ExpressionAccessor
	for _, c := range p.Spec.MatchConditions {
		conditions = append(conditions, &matchconditions.MatchCondition{Name: c.Name, Expression: c.Expression})
	}
	messages := make([]cel.ExpressionAccessor, len(p.Spec.Validations))
	for i, v := range p.Spec.Validations {
		rules = append(rules, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	condition := func(of []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(of, vars, environment.NewExpressions)
	}
	matcher := matchconditions.NewMatcher(condition(conditions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	return validating.NewValidator(condition(rules), matcher, condition(nil), condition(messages), p.Spec.FailurePolicy, nil)
}

// request is a request to the API server. A nil object is absent.
type request struct {
	operation admission.Operation
	resource  string // "nodes", "nodes/status", "pods", "events"
	object    any
	old       any
	user      string            // "": the validator
	node      string            // in the token; "": n1, "-": none
	params    *appsv1.DaemonSet // nil: the manifest's
}

// attributes are the inputs of a policy. The API server passes objects to policies in
// one of two ways; which depends on its version and feature gates.
func (r request) attributes(t *testing.T, schemaless bool) *admission.VersionedAttributes {
	t.Helper()
	resource, sub, _ := strings.Cut(r.resource, "/")
	kind := map[string]string{"nodes": "Node", "pods": "Pod", "events": "Event", "resourceslices": "ResourceSlice"}[resource]
	named := r.object
	if named == nil {
		named = r.old
	}
	accessor, err := meta.Accessor(named)
	require.NoError(t, err)
	info := &user.DefaultInfo{Name: validator}
	if r.user != "" {
		info.Name = r.user
	}
	if r.node != "-" {
		info.Extra = map[string][]string{nodeKey: {"n1"}, podKey: {"v"}, podUIDKey: {"u"}}
		if r.node != "" {
			info.Extra[nodeKey] = []string{r.node}
		}
	}
	object := func(v any) runtime.Object {
		if v == nil {
			return nil
		}
		return v.(runtime.Object)
	}
	version := corev1.SchemeGroupVersion
	if kind == "ResourceSlice" {
		version = resourceapi.SchemeGroupVersion
	}
	gvk := version.WithKind(kind)
	return &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(object(r.object), object(r.old), gvk, accessor.GetNamespace(), accessor.GetName(),
			version.WithResource(resource), sub, r.operation, nil, false, info),
		VersionedKind: gvk, VersionedObject: lazy(object(r.object), schemaless), VersionedOldObject: lazy(object(r.old), schemaless),
	}
}

func lazy(o runtime.Object, schemaless bool) admission.LazyObject {
	l := admission.NewLazyObject(o)
	l.UseSchemalessTypeRef = schemaless //nolint:staticcheck // until there is one way
	return l
}

// evaluate returns why the request is refused, or "".
func evaluate(t *testing.T, r request) string {
	t.Helper()
	if r.params == nil {
		r.params = daemonSet(t)
	}
	said, first := "", true
	for _, v := range versions {
		for _, schemaless := range []bool{false, true} {
			attributes := r.attributes(t, schemaless)
			var refusals []string
			for _, p := range all(t, v) {
				if !p.matches(r.operation, r.resource) {
					continue
				}
				var params runtime.Object
				if p.params {
					params = r.params
				}
				result := p.Validate(t.Context(), attributes.GetResource(), attributes, params, nil, celconfig.RuntimeCELCostBudget, nil)
				for _, d := range result.Decisions {
					if d.Action == validating.ActionDeny {
						refusals = append(refusals, d.Message)
					}
				}
			}
			text := strings.Join(refusals, "\n")
			if !first {
				require.Equal(t, said, text, "Kubernetes %s (schemaless: %t) decides in another way than %s", v, schemaless, versions[0])
			}
			said, first = text, false
		}
	}
	return said
}

// jsonResolver is the API server's own OpenAPI, as checked in.
type jsonResolver map[string]*spec.Schema

func (j jsonResolver) ResolveSchema(gvk schema.GroupVersionKind) (*spec.Schema, error) {
	group, _, _ := strings.Cut(gvk.Group, ".")
	name := "io.k8s.api." + cmp.Or(group, "core") + "." + gvk.Version + "." + gvk.Kind
	return resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
		s, known := j[strings.TrimPrefix(ref, "#/components/schemas/")]
		return s, known
	}, name)
}

func loadCore(t *testing.T) jsonResolver {
	t.Helper()
	dir, _, err := openapi.Source(t.Context())
	require.NoError(t, err)
	all := jsonResolver{}
	for _, name := range []string{"api__v1", "apis__apps__v1", "apis__resource.k8s.io__v1"} {
		data, err := os.ReadFile(filepath.Join(dir, "api/openapi-spec/v3/"+name+"_openapi.json"))
		require.NoError(t, err)
		var document struct {
			Components struct{ Schemas map[string]*spec.Schema }
		}
		require.NoError(t, json.Unmarshal(data, &document))
		maps.Copy(all, document.Components.Schemas)
	}
	return all
}

func TestPoliciesCompileAndUseExistingFields(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion, resourceapi.SchemeGroupVersion})
	for _, kind := range []string{"Node", "Pod", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), meta.RESTScopeRoot)
	checker := &validating.TypeChecker{SchemaResolver: loadCore(t), RestMapper: mapper}
	for _, p := range policies(t) {
		require.Empty(t, checker.Check(p), p.Name)
	}
}

func TestEachPolicyIsBound(t *testing.T) {
	bindings := decode(t, "ValidatingAdmissionPolicyBinding", func() *admissionregistration.ValidatingAdmissionPolicyBinding {
		return &admissionregistration.ValidatingAdmissionPolicyBinding{}
	})
	for _, p := range policies(t) {
		require.Equal(t, admissionregistration.Fail, *p.Spec.FailurePolicy, p.Name)
		var everywhere, withParams int
		for _, b := range bindings {
			if b.Spec.PolicyName != p.Name {
				continue
			}
			require.Equal(t, []admissionregistration.ValidationAction{admissionregistration.Deny}, b.Spec.ValidationActions, b.Name)
			ref := b.Spec.ParamRef
			if ref == nil {
				require.Nil(t, b.Spec.MatchResources, "%s holds everywhere", b.Name)
				everywhere++
				continue
			}
			// Where parameters are missing, a binding that denies would refuse every pod of
			// every matching namespace, including those of the operator that creates them.
			withParams++
			require.Equal(t, admissionregistration.AllowAction, *ref.ParameterNotFoundAction, b.Name)
			require.Equal(t, "gpuready", ref.Namespace, b.Name)
			require.Equal(t, map[string]string{corev1.LabelMetadataName: "gpuready"}, b.Spec.MatchResources.NamespaceSelector.MatchLabels, b.Name)
			selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
			require.NoError(t, err)
			require.True(t, selector.Matches(labels.Set(daemonSet(t).Labels)), b.Name)
		}
		require.Equal(t, 1, everywhere, p.Name)
		require.Equal(t, p.Spec.ParamKind != nil, withParams == 1, p.Name)
	}
}

// --- nodes ---

// node is a node as in a real cluster.
func node(name string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "u", ResourceVersion: "1", Labels: map[string]string{"kubernetes.io/hostname": name},
			Annotations:   map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "p", Taints: []corev1.Taint{
			{Key: "nvidia.com/gpu-not-ready", Effect: corev1.TaintEffectNoSchedule},
			{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.1.1"}},
			NodeInfo:  corev1.NodeSystemInfo{KubeletVersion: "v1.30.0"},
		},
	}
	for i := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example.com/a/long/name/of/an/image/%d@sha256:%064d", i, i)}, SizeBytes: int64(i),
		})
	}
	return n
}

// changed returns a request that changes a node as given.
func changed(resource, name string, change func(*corev1.Node)) request {
	now := node(name)
	now.ResourceVersion = "2"
	now.ManagedFields = append(now.ManagedFields, metav1.ManagedFieldsEntry{Manager: "gpu-validator"})
	change(now)
	return request{operation: admission.Update, resource: resource, object: now, old: node(name)}
}

func setReady(n *corev1.Node) {
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue, Reason: "Ready"})
}

func removeTaint(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[1:] }

func TestValidatorMayUpdateItsOwnNode(t *testing.T) {
	require.Empty(t, evaluate(t, changed("nodes/status", "n1", setReady)))
	require.Empty(t, evaluate(t, changed("nodes", "n1", removeTaint)))
	require.Empty(t, evaluate(t, changed("nodes", "n1", func(n *corev1.Node) {})))
	for _, key := range []string{"nvidia.com/gpu-not-ready", "gpuready.io/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"} {
		back := changed("nodes", "n1", func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints[1:], corev1.Taint{Key: key, Effect: "NoSchedule"})
		})
		require.Empty(t, evaluate(t, back), key)
		back.old, back.object = back.object, back.old
		require.Empty(t, evaluate(t, back), "%s goes again", key)
	}
	require.Empty(t, evaluate(t, changed("nodes/status", "n1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUHealthy", Status: corev1.ConditionFalse, Reason: "XID"})
	})))

	again := changed("nodes/status", "n1", setReady)
	setReady(again.old.(*corev1.Node))
	again.object.(*corev1.Node).Status.Conditions[2].Status = corev1.ConditionFalse
	require.Empty(t, evaluate(t, again), "the condition is there already")

	last := changed("nodes", "n1", func(n *corev1.Node) { n.Spec.Taints = nil })
	last.old.(*corev1.Node).Spec.Taints = last.old.(*corev1.Node).Spec.Taints[:1]
	require.Empty(t, evaluate(t, last), "its taint was the only one")

	bare := changed("nodes/status", "n1", func(n *corev1.Node) { n.Labels, n.Annotations, n.ManagedFields = nil, nil, nil })
	bare.old.(*corev1.Node).Labels, bare.old.(*corev1.Node).Annotations = nil, nil
	require.Empty(t, evaluate(t, bare))
}

// offer returns a list with one resource.
func offer(name corev1.ResourceName, devices int64) corev1.ResourceList {
	return corev1.ResourceList{name: *resource.NewQuantity(devices, resource.DecimalSI)}
}

// Allocatable devices may be reported once, from nothing to something, and are the
// kubelet's from then on.
func TestDevicesAreReportedAheadOfTheKubelet(t *testing.T) {
	report := func(before, devices int64) request {
		r := changed("nodes/status", "n1", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = offer("nvidia.com/gpu", devices), offer("nvidia.com/gpu", devices)
		})
		if before >= 0 {
			r.old.(*corev1.Node).Status.Capacity, r.old.(*corev1.Node).Status.Allocatable = offer("nvidia.com/gpu", 8), offer("nvidia.com/gpu", before)
		}
		return r
	}
	require.Empty(t, evaluate(t, report(-1, 8)), "there are none")
	require.Empty(t, evaluate(t, report(0, 8)), "a plugin that has gone has left its capacity")
	require.Empty(t, evaluate(t, report(8, 8)), "nothing changes")
	require.Empty(t, evaluate(t, report(0, 2000)), "written as 2k")
	for name, r := range map[string]request{"fewer": report(8, 7), "more": report(8, 9), "none": report(8, 0)} {
		require.Contains(t, evaluate(t, r), "of which none is allocatable", name)
	}
	gone := report(8, 8)
	gone.object.(*corev1.Node).Status.Capacity, gone.object.(*corev1.Node).Status.Allocatable = nil, nil
	require.NotEmpty(t, evaluate(t, gone))
	other := report(0, 8)
	other.node = "n2"
	require.Contains(t, evaluate(t, other), "the Node that its pod runs on")
}

func TestGPUFeaturesMayBePublished(t *testing.T) {
	said := changed("nodes", "n1", func(n *corev1.Node) {
		n.Labels["nvidia.com/gpu.product"] = "H100"
		n.Labels["nvidia.com/mig-1g.10gb.count"] = "7"
		n.Labels["nvidia.com/mig.capable"] = "true"
		n.Annotations["gpuready.io/feature-labels"] = "gpu.product,mig-1g.10gb.count,mig.capable"
	})
	require.Empty(t, evaluate(t, said))
	said.old, said.object = said.object, said.old
	require.Empty(t, evaluate(t, said), "taken away again")
	require.NotEmpty(t, evaluate(t, changed("nodes", "n2", func(n *corev1.Node) { n.Labels["nvidia.com/gpu.product"] = "H100" })))
}

func TestOtherNodeIsRefused(t *testing.T) {
	const want = `gpu-validator may change the Node that its pod runs on, "n1", not "n2"`
	require.Equal(t, want, evaluate(t, changed("nodes/status", "n2", setReady)))
	require.Equal(t, want, evaluate(t, changed("nodes", "n2", removeTaint)))
}

func TestTokenWithoutANodeIsRefused(t *testing.T) {
	r := changed("nodes/status", "n1", setReady)
	r.node = "-"
	require.Equal(t, `gpu-validator may change the Node that its pod runs on, "", not "n1"`, evaluate(t, r))
	r = changed("nodes/status", "n1", setReady)
	r.user, r.node = validator, "n10"
	require.NotEmpty(t, evaluate(t, r), "a name that begins alike is another")
}

func TestOtherUsersAreNotAffected(t *testing.T) {
	for _, name := range []string{"system:node:n2", "system:serviceaccount:gpuready:gpu-toolkit", "system:serviceaccount:other:gpu-validator"} {
		r := changed("nodes", "n2", func(n *corev1.Node) { n.Labels = nil })
		r.user, r.node = name, "-"
		require.Empty(t, evaluate(t, r))
	}
}

func TestOtherChangesOfItsNodeAreRefused(t *testing.T) {
	const (
		metadata  = "gpu-validator may not change a Node's metadata but for labels of its GPUs"
		labels    = "gpu-validator may change no labels of a Node but those that say what its GPUs are"
		notes     = "gpu-validator may change no annotation of a Node but gpuready.io/feature-labels"
		fields    = "gpu-validator may not change a Node's spec but for its taints"
		taints    = "gpu-validator may only remove startup taints, and add them with the effect NoSchedule: nvidia.com/gpu-not-ready, gpuready.io/not-ready, startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"
		status    = "gpu-validator may not change a Node's status but for its conditions, and devices that the kubelet has not reported yet"
		devices   = "gpu-validator may add to a Node's capacity and allocatable nothing but nvidia.com/ devices of which none is allocatable, up to 99999 each, of 64 names"
		condition = "gpu-validator may change no conditions of a Node but GPUReady and GPUHealthy"
		said      = "gpu-validator says each of the conditions GPUReady and GPUHealthy once, with a reason of 128 characters and a message of 1024"
		many      = "gpu-validator may bring a Node to 512 labels of GPUs, and name them in gpuready.io/feature-labels with 40000 bytes"
	)
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"a label":                  {func(n *corev1.Node) { n.Labels["pool"] = "secret" }, labels},
		"a label less":             {func(n *corev1.Node) { n.Labels = nil }, labels},
		"what runs on the node":    {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.deploy.device-plugin"] = "false" }, labels},
		"which kind of agents":     {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.workload.config"] = "vm-passthrough" }, labels},
		"that agents run here":     {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" }, labels},
		"which configuration":      {func(n *corev1.Node) { n.Labels["nvidia.com/device-plugin.config"] = "other" }, labels},
		"how its GPUs are divided": {func(n *corev1.Node) { n.Labels["nvidia.com/mig.config"] = "all-1g.10gb" }, labels},
		"a role":                   {func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, labels},
		"a feature's name within":  {func(n *corev1.Node) { n.Labels["evil.example/nvidia.com/gpu.count"] = "1" }, labels},
		"an annotation":            {func(n *corev1.Node) { n.Annotations["a"] = "c" }, notes},
		"an annotation less":       {func(n *corev1.Node) { n.Annotations = nil }, notes},
		"a finalizer":              {func(n *corev1.Node) { n.Finalizers = []string{"a/b"} }, metadata},
		"an owner":                 {func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, metadata},
		"cordoned":                 {func(n *corev1.Node) { n.Spec.Unschedulable = true }, fields},
		"provider ID":              {func(n *corev1.Node) { n.Spec.ProviderID = "" }, fields},
		"a taint more": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu-not-ready", Effect: "NoExecute"})
		}, taints},
		"a taint of another key": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu", Effect: "NoSchedule"})
		}, taints},
		"a taint of others":         {func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }, taints},
		"a taint of others changed": {func(n *corev1.Node) { n.Spec.Taints[1].Value = "cpu" }, taints},
		"its taint changed":         {func(n *corev1.Node) { n.Spec.Taints[0].Effect = "NoExecute" }, taints},
		"capacity of none":          {func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": {}} }, devices},
		"capacity alone":            {func(n *corev1.Node) { n.Status.Capacity = offer("nvidia.com/gpu", 8) }, devices},
		"the network's devices":     {func(n *corev1.Node) { n.Status.Allocatable = offer("nvidia.com/hostdev", 8) }, devices},
		"many names": {func(n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{}
			for i := range 65 {
				n.Status.Allocatable[corev1.ResourceName(fmt.Sprintf("nvidia.com/x%d", i))] = *resource.NewQuantity(1, resource.DecimalSI)
			}
		}, devices},
		"another's resource":       {func(n *corev1.Node) { n.Status.Allocatable = offer("example.com/nvidia.com/gpu", 8) }, devices},
		"memory":                   {func(n *corev1.Node) { n.Status.Allocatable = offer("memory", 8) }, devices},
		"more devices than can be": {func(n *corev1.Node) { n.Status.Allocatable = offer("nvidia.com/gpu", 100000) }, devices},
		"an address":               {func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.1.1.2" }, status},
		"addresses gone":           {func(n *corev1.Node) { n.Status.Addresses = nil }, status},
		"an image":                 {func(n *corev1.Node) { n.Status.Images[49].SizeBytes = 1 }, status},
		"Ready":                    {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, condition},
		"a condition more": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Other"})
		}, condition},
		"a condition twice":        {func(n *corev1.Node) { setReady(n); setReady(n) }, said},
		"a condition's long words": {func(n *corev1.Node) { setReady(n); n.Status.Conditions[2].Message = strings.Repeat("x", 1025) }, said},
		"a condition's status":     {func(n *corev1.Node) { setReady(n); n.Status.Conditions[2].Status = "Maybe" }, said},
		"a taint with a value": {func(n *corev1.Node) {
			n.Spec.Taints[0] = corev1.Taint{Key: "nvidia.com/gpu-not-ready", Value: "x", Effect: "NoSchedule"}
		}, taints},
		"thousands of labels": {func(n *corev1.Node) {
			for i := range 513 {
				n.Labels[fmt.Sprintf("nvidia.com/gpu.x%d", i)] = ""
			}
		}, many},
		"a long annotation": {func(n *corev1.Node) { n.Annotations["gpuready.io/feature-labels"] = strings.Repeat("x", 40001) }, many},
		"a condition less":  {func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, condition},
	} {
		for _, resource := range []string{"nodes", "nodes/status"} {
			require.Equal(t, c.want, evaluate(t, changed(resource, "n1", c.change)), "%s of %s", name, resource)
		}
	}
	require.NotEmpty(t, evaluate(t, request{operation: admission.Delete, resource: "nodes", old: node("n1")}))
	require.NotEmpty(t, evaluate(t, request{operation: admission.Create, resource: "nodes", object: node("n1")}))
}

// --- events ---

func event(kind, name string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "n1.0123456789abcdef"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: types.UID(name)},
		Reason:         "XID", Type: corev1.EventTypeWarning, Message: "GPU 0: XID 79", Count: 1,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
		Source: corev1.EventSource{Component: "gpu-validator", Host: "n1"}, ReportingController: "gpu-validator", ReportingInstance: "n1",
	}
}

func TestEventsMustConcernItsOwnNode(t *testing.T) {
	const want = `gpu-validator may tell of the Node that its pod runs on, "n1", alone`
	require.Empty(t, evaluate(t, request{operation: admission.Create, resource: "events", object: event("Node", "n1")}))
	counted := event("Node", "n1")
	counted.Count = 2
	require.Empty(t, evaluate(t, request{operation: admission.Update, resource: "events", object: counted, old: event("Node", "n1")}))

	for _, name := range []string{"n2.0123456789abcdef", "n1", "n10.0123456789abcdef", "n1.example.0123456789abcdef", ""} {
		taken := event("Node", "n1")
		taken.Name = name
		require.Equal(t, want, evaluate(t, request{operation: admission.Create, resource: "events", object: taken}), "%q is in the way of another node's", name)
	}
	long := event("Node", strings.Repeat("n", 240))
	long.Name = strings.Repeat("n", 200) + ".0123456789abcdef"
	long.Source.Host, long.ReportingInstance = long.InvolvedObject.Name, long.InvolvedObject.Name
	require.Empty(t, evaluate(t, request{operation: admission.Create, resource: "events", object: long, node: strings.Repeat("n", 240)}))
	require.Equal(t, want, evaluate(t, request{operation: admission.Create, resource: "events", object: event("Node", "n2")}))
	require.Equal(t, want, evaluate(t, request{operation: admission.Create, resource: "events", object: event("Pod", "n1")}))
	require.Equal(t, want, evaluate(t, request{operation: admission.Update, resource: "events", object: event("Node", "n1"), old: event("Node", "n2")}))
	require.NotEmpty(t, evaluate(t, request{operation: admission.Delete, resource: "events", old: event("Node", "n1")}))
	require.Contains(t, evaluate(t, request{operation: admission.Create, resource: "events", object: event("Node", "n1"), node: "-"}), strings.Replace(want, "n1", "", 1))
	const says = "an Event of gpu-validator says that it is by gpu-validator, has a reason of 128 characters and a message of 1024, and nothing beside"
	for name, change := range map[string]func(*corev1.Event){
		"as the kubelet":        func(e *corev1.Event) { e.Source.Component = "kubelet" },
		"from another host":     func(e *corev1.Event) { e.Source.Host = "n2" },
		"as another controller": func(e *corev1.Event) { e.ReportingController = "kubelet" },
		"of a megabyte":         func(e *corev1.Event) { e.Message = strings.Repeat("x", 1<<20) },
		"with a long reason":    func(e *corev1.Event) { e.Reason = strings.Repeat("x", 129) },
		"of another type":       func(e *corev1.Event) { e.Type = "Alarm" },
		"with a label":          func(e *corev1.Event) { e.Labels = map[string]string{"a": "b"} },
		"with an annotation":    func(e *corev1.Event) { e.Annotations = map[string]string{"a": "b"} },
		"with an owner":         func(e *corev1.Event) { e.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} },
		"with a finalizer":      func(e *corev1.Event) { e.Finalizers = []string{"a/b"} },
		"about something else":  func(e *corev1.Event) { e.Related = &corev1.ObjectReference{Kind: "Pod", Name: "x"} },
		"with an action":        func(e *corev1.Event) { e.Action = "x" },
		"of a series":           func(e *corev1.Event) { e.Series = &corev1.EventSeries{Count: 2} },
		"about a field":         func(e *corev1.Event) { e.InvolvedObject.FieldPath = "x" },
	} {
		e := event("Node", "n1")
		change(e)
		require.Contains(t, evaluate(t, request{operation: admission.Create, resource: "events", object: e}), says, name)
		require.Contains(t, evaluate(t, request{operation: admission.Update, resource: "events", object: e, old: event("Node", "n1")}), says, name)
	}
}

// --- the MIG manager ---

// byMIGManager returns the request as one of the MIG manager.
func byMIGManager(r request) request {
	r.user = migManager
	return r
}

func TestMIGManagerMayUpdateItsOwnNode(t *testing.T) {
	clients := []string{"device-plugin", "gpu-feature-discovery", "dcgm", "dcgm-exporter", "nvsm", "client"}
	for _, state := range []string{"pending", "rebooting", "success", "failed"} {
		require.Empty(t, evaluate(t, byMIGManager(changed("nodes", "n1", func(n *corev1.Node) { n.Labels["nvidia.com/mig.config.state"] = state }))), state)
	}
	pause := byMIGManager(changed("nodes", "n1", func(n *corev1.Node) {
		for _, client := range clients {
			n.Labels["nvidia.com/gpu.deploy."+client] = "paused-for-mig-change"
		}
	}))
	require.Empty(t, evaluate(t, pause), "where there were none")
	for _, client := range clients {
		pause.old.(*corev1.Node).Labels["nvidia.com/gpu.deploy."+client] = "true"
	}
	require.Empty(t, evaluate(t, pause))
	pause.old, pause.object = pause.object, pause.old
	require.Empty(t, evaluate(t, pause), "they come back")
	for _, app := range []string{"nvidia-operator-validator", "nvidia-cuda-validator", "nvidia-device-plugin-validator"} {
		require.Empty(t, evaluate(t, byMIGManager(deleted(ofApp(app, "n1")))), app)
	}
}

func ofApp(app, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: app + "-x", Namespace: "gpuready-system", Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{NodeName: node}}
}

func TestMIGManagerIsRefusedOtherChanges(t *testing.T) {
	const (
		label    = "gpu-mig-manager may set nvidia.com/mig.config.state to pending"
		nothing  = "gpu-mig-manager may change nothing of a Node but labels"
		ownNode  = `gpu-mig-manager may change the Node that its pod runs on, "n1", not "n2"`
		ownPods  = `gpu-mig-manager may delete the validators on the node that its pod runs on, "n1", alone`
		noStatus = "gpu-mig-manager neither creates nor deletes nodes, and changes no status"
		noPods   = "gpu-mig-manager deletes pods, it neither creates nor changes them, and reaches into none"
	)
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"a label":             {func(n *corev1.Node) { n.Labels["pool"] = "secret" }, label},
		"a label less":        {func(n *corev1.Node) { n.Labels = nil }, label},
		"its own order":       {func(n *corev1.Node) { n.Labels["nvidia.com/mig.config"] = "all-1g.10gb" }, label},
		"another state":       {func(n *corev1.Node) { n.Labels["nvidia.com/mig.config.state"] = "x" }, label},
		"an operand kept off": {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.deploy.device-plugin"] = "false" }, label},
		"another operand":     {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.deploy.driver"] = "true" }, label},
		"a feature":           {func(n *corev1.Node) { n.Labels["nvidia.com/gpu.product"] = "x" }, label},
		"a role":              {func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, label},
		"an annotation":       {func(n *corev1.Node) { n.Annotations["gpuready.io/labels"] = "present" }, nothing},
		"a finalizer":         {func(n *corev1.Node) { n.Finalizers = []string{"a/b"} }, nothing},
		"an owner":            {func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, nothing},
		"cordoned":            {func(n *corev1.Node) { n.Spec.Unschedulable = true }, nothing},
		"a taint": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "a", Effect: "NoExecute"})
		}, nothing},
		"a taint less": {removeTaint, nothing},
	} {
		require.Contains(t, evaluate(t, byMIGManager(changed("nodes", "n1", c.change))), c.want, name)
	}
	kept := byMIGManager(changed("nodes", "n1", func(n *corev1.Node) { n.Labels["nvidia.com/gpu.deploy.dcgm"] = "true" }))
	kept.old.(*corev1.Node).Labels["nvidia.com/gpu.deploy.dcgm"] = "false"
	require.Contains(t, evaluate(t, kept), label, "a person keeps it away")

	changeValue := func(n *corev1.Node) { n.Labels["nvidia.com/mig.config.state"] = "success" }
	require.Contains(t, evaluate(t, byMIGManager(changed("nodes", "n2", changeValue))), ownNode)
	none := byMIGManager(changed("nodes", "n1", changeValue))
	none.node = "-"
	require.NotEmpty(t, evaluate(t, none), "a token without a node")
	require.Contains(t, evaluate(t, byMIGManager(changed("nodes/status", "n1", setReady))), noStatus)
	require.Contains(t, evaluate(t, byMIGManager(request{operation: admission.Delete, resource: "nodes", old: node("n1")})), noStatus)
	require.Contains(t, evaluate(t, byMIGManager(request{operation: admission.Create, resource: "nodes", object: node("n1")})), noStatus)

	for _, p := range []*corev1.Pod{ofApp("nvidia-operator-validator", "n2"), ofApp("nvidia-operator-validator", ""), ofApp("nvidia-device-plugin-daemonset", "n1"), ofApp("gpuready-operator", "n1"), ofApp("", "n1")} {
		require.Contains(t, evaluate(t, byMIGManager(deleted(p))), ownPods, p.Name)
	}
	for _, r := range []request{created(ofApp("x", "n1")), {operation: admission.Update, resource: "pods", object: ofApp("x", "n1"), old: ofApp("x", "n1")}, {operation: admission.Connect, resource: "pods/exec", object: ofApp("x", "n1")}} {
		require.Contains(t, evaluate(t, byMIGManager(r)), noPods, r.resource)
	}
}
