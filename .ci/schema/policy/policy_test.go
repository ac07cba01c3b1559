package policy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

	"github.com/gpuready/gpuready/.ci/schema/kubernetes"
)

const (
	manifest  = "../../../deployments/static/gpuready.yaml"
	validator = "system:serviceaccount:gpuready:gpu-validator"
	nodeKey   = "authentication.kubernetes.io/node-name"
)

// The oldest Kubernetes that has these policies, and ours.
var versions = []*version.Version{version.MajorMinor(1, 30), environment.DefaultCompatibilityVersion()}

// policies are those of the manifest.
func policies(t *testing.T) []*admissionregistration.ValidatingAdmissionPolicy {
	t.Helper()
	file, err := os.Open(manifest)
	require.NoError(t, err)
	defer file.Close()
	reader := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var all []*admissionregistration.ValidatingAdmissionPolicy
	for {
		p := &admissionregistration.ValidatingAdmissionPolicy{}
		if err := reader.Decode(p); err != nil {
			break
		}
		if p.Kind == "ValidatingAdmissionPolicy" {
			all = append(all, p)
		}
	}
	require.Len(t, all, 3)
	return all
}

// A bound is a policy, compiled for a version of Kubernetes.
type bound struct {
	validating.Validator
	resources []string
}

var compiled = map[*version.Version][]bound{}

// all are the policies as a version of Kubernetes understands them.
func all(t *testing.T, v *version.Version) []bound {
	t.Helper()
	if compiled[v] == nil {
		for _, p := range policies(t) {
			var resources []string
			for _, rule := range p.Spec.MatchConstraints.ResourceRules {
				resources = append(resources, rule.Resources...)
			}
			compiled[v] = append(compiled[v], bound{compile(t, p, v), resources})
		}
	}
	return compiled[v]
}

// compile makes a validator as the API server does.
func compile(t *testing.T, p *admissionregistration.ValidatingAdmissionPolicy, v *version.Version) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(v))
	require.NoError(t, err)
	vars := cel.OptionalVariableDeclarations{HasAuthorizer: true}
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

// request is what somebody asks of the API server. An object that is nil is
// not there.
type request struct {
	operation admission.Operation
	resource  string // "nodes", "nodes/status", "pods", "events"
	object    any
	old       any
	user      string // "": the validator
	node      string // in the token; "": n1, "-": none
}

// attributes are what a policy is told. The API server shows objects to policies in
// one of two ways; which depends on its version and feature gates.
func (r request) attributes(t *testing.T, schemaless bool) *admission.VersionedAttributes {
	t.Helper()
	resource, sub, _ := strings.Cut(r.resource, "/")
	kind := map[string]string{"nodes": "Node", "pods": "Pod", "events": "Event"}[resource]
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
		info.Extra = map[string][]string{nodeKey: {"n1"}}
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
	gvk := corev1.SchemeGroupVersion.WithKind(kind)
	return &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(object(r.object), object(r.old), gvk, accessor.GetNamespace(), accessor.GetName(),
			corev1.SchemeGroupVersion.WithResource(resource), sub, r.operation, nil, false, info),
		VersionedKind: gvk, VersionedObject: lazy(object(r.object), schemaless), VersionedOldObject: lazy(object(r.old), schemaless),
	}
}

func lazy(o runtime.Object, schemaless bool) admission.LazyObject {
	l := admission.NewLazyObject(o)
	l.UseSchemalessTypeRef = schemaless //nolint:staticcheck // until there is one way
	return l
}

// ask returns why the request is refused, "" where it is not.
func ask(t *testing.T, r request) string {
	t.Helper()
	said, first := "", true
	for _, v := range versions {
		for _, schemaless := range []bool{false, true} {
			attributes := r.attributes(t, schemaless)
			var refusals []string
			for _, p := range all(t, v) {
				if !slices.Contains(p.resources, r.resource) {
					continue
				}
				result := p.Validate(t.Context(), attributes.GetResource(), attributes, nil, nil, celconfig.RuntimeCELCostBudget, nil)
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
	name := "io.k8s.api.core." + gvk.Version + "." + gvk.Kind
	return resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
		s, known := j[strings.TrimPrefix(ref, "#/components/schemas/")]
		return s, known
	}, name)
}

func loadCore(t *testing.T) jsonResolver {
	t.Helper()
	dir, _, err := kubernetes.Source(t.Context())
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "api/openapi-spec/v3/api__v1_openapi.json"))
	require.NoError(t, err)
	var document struct {
		Components struct{ Schemas map[string]*spec.Schema }
	}
	require.NoError(t, json.Unmarshal(data, &document))
	return document.Components.Schemas
}

func TestThePoliciesCompileAndNameOnlyFieldsThatThereAre(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	for _, kind := range []string{"Node", "Pod", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	checker := &validating.TypeChecker{SchemaResolver: loadCore(t), RestMapper: mapper}
	for _, p := range policies(t) {
		require.Empty(t, checker.Check(p), p.Name)
	}
}

func TestEachPolicyIsBound(t *testing.T) {
	data, err := os.ReadFile(manifest)
	require.NoError(t, err)
	for _, p := range policies(t) {
		require.Equal(t, 1, strings.Count(string(data), fmt.Sprintf("policyName: %s\n", p.Name)), p.Name)
	}
}

// --- nodes ---

// node is one as a real cluster has it.
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

func TestOfItsOwnNodeTheValidatorMayDoItsWork(t *testing.T) {
	require.Empty(t, ask(t, changed("nodes/status", "n1", setReady)))
	require.Empty(t, ask(t, changed("nodes", "n1", removeTaint)))
	require.Empty(t, ask(t, changed("nodes", "n1", func(n *corev1.Node) {})))
	for _, key := range []string{"nvidia.com/gpu-not-ready", "gpuready.io/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"} {
		back := changed("nodes", "n1", func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints[1:], corev1.Taint{Key: key, Effect: "NoSchedule"})
		})
		require.Empty(t, ask(t, back), key)
		back.old, back.object = back.object, back.old
		require.Empty(t, ask(t, back), "%s goes again", key)
	}
	require.Empty(t, ask(t, changed("nodes/status", "n1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUHealthy", Status: corev1.ConditionFalse, Reason: "XID"})
	})))

	again := changed("nodes/status", "n1", setReady)
	setReady(again.old.(*corev1.Node))
	again.object.(*corev1.Node).Status.Conditions[2].Status = corev1.ConditionFalse
	require.Empty(t, ask(t, again), "the condition is there already")

	last := changed("nodes", "n1", func(n *corev1.Node) { n.Spec.Taints = nil })
	last.old.(*corev1.Node).Spec.Taints = last.old.(*corev1.Node).Spec.Taints[:1]
	require.Empty(t, ask(t, last), "its taint was the only one")

	bare := changed("nodes/status", "n1", func(n *corev1.Node) { n.Labels, n.Annotations, n.ManagedFields = nil, nil, nil })
	bare.old.(*corev1.Node).Labels, bare.old.(*corev1.Node).Annotations = nil, nil
	require.Empty(t, ask(t, bare))
}

func TestTheFeaturesOfItsGPUsMayBeSaid(t *testing.T) {
	said := changed("nodes", "n1", func(n *corev1.Node) {
		n.Labels["nvidia.com/gpu.product"] = "H100"
		n.Labels["nvidia.com/mig-1g.10gb.count"] = "7"
		n.Labels["nvidia.com/mig.capable"] = "true"
		n.Annotations["gpuready.io/feature-labels"] = "gpu.product,mig-1g.10gb.count,mig.capable"
	})
	require.Empty(t, ask(t, said))
	said.old, said.object = said.object, said.old
	require.Empty(t, ask(t, said), "taken away again")
	require.NotEmpty(t, ask(t, changed("nodes", "n2", func(n *corev1.Node) { n.Labels["nvidia.com/gpu.product"] = "H100" })))
}

func TestAnotherNodeIsRefused(t *testing.T) {
	const want = `gpu-validator may change the Node that its pod runs on, "n1", not "n2"`
	require.Equal(t, want, ask(t, changed("nodes/status", "n2", setReady)))
	require.Equal(t, want, ask(t, changed("nodes", "n2", removeTaint)))
}

func TestATokenWithoutANodeIsRefused(t *testing.T) {
	r := changed("nodes/status", "n1", setReady)
	r.node = "-"
	require.Equal(t, `gpu-validator may change the Node that its pod runs on, "", not "n1"`, ask(t, r))
	r = changed("nodes/status", "n1", setReady)
	r.user, r.node = validator, "n10"
	require.NotEmpty(t, ask(t, r), "a name that begins alike is another")
}

func TestOthersAreNotAskedAbout(t *testing.T) {
	for _, name := range []string{"system:node:n2", "system:serviceaccount:gpuready:gpu-toolkit", "system:serviceaccount:other:gpu-validator"} {
		r := changed("nodes", "n2", func(n *corev1.Node) { n.Labels = nil })
		r.user, r.node = name, "-"
		require.Empty(t, ask(t, r))
	}
}

func TestNothingElseOfItsNodeCanBeChanged(t *testing.T) {
	const (
		metadata  = "gpu-validator may not change a Node's metadata but for labels of its GPUs"
		labels    = "gpu-validator may change no labels of a Node but those that say what its GPUs are"
		notes     = "gpu-validator may change no annotation of a Node but gpuready.io/feature-labels"
		fields    = "gpu-validator may not change a Node's spec but for its taints"
		taints    = "gpu-validator may only remove startup taints, and add them with the effect NoSchedule: nvidia.com/gpu-not-ready, gpuready.io/not-ready, startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"
		status    = "gpu-validator may not change a Node's status but for its conditions"
		condition = "gpu-validator may change no conditions of a Node but GPUReady and GPUHealthy"
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
		"capacity":                  {func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": {}} }, status},
		"an address":                {func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.1.1.2" }, status},
		"addresses gone":            {func(n *corev1.Node) { n.Status.Addresses = nil }, status},
		"an image":                  {func(n *corev1.Node) { n.Status.Images[49].SizeBytes = 1 }, status},
		"Ready":                     {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, condition},
		"a condition more": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Other"})
		}, condition},
		"a condition less": {func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, condition},
	} {
		for _, resource := range []string{"nodes", "nodes/status"} {
			require.Equal(t, c.want, ask(t, changed(resource, "n1", c.change)), "%s of %s", name, resource)
		}
	}
	require.NotEmpty(t, ask(t, request{operation: admission.Delete, resource: "nodes", old: node("n1")}))
	require.NotEmpty(t, ask(t, request{operation: admission.Create, resource: "nodes", object: node("n1")}))
}

// --- pods ---

// pod is the one that proves the plugin, as the API server has completed it.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpuready", Name: "nvidia-device-plugin-validation-n1",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "v", UID: "u"}},
		},
		Spec: corev1.PodSpec{
			PriorityClassName: "gpuready-validator-workload", ServiceAccountName: "default", AutomountServiceAccountToken: new(false), RestartPolicy: corev1.RestartPolicyNever,
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{own("n1")},
			}}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "vectoradd", Image: "gpuready/validator:v0.1.0",
				Env: []corev1.EnvVar{{Name: "A", Value: "B"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func own(name string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
}

func required(p *corev1.Pod) *corev1.NodeSelector {
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func created(p *corev1.Pod) request {
	return request{operation: admission.Create, resource: "pods", object: p}
}

func deleted(p *corev1.Pod) request {
	return request{operation: admission.Delete, resource: "pods", old: p}
}

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = name }
}

func TestThePodThatProvesThePluginMayBeMadeAndDeleted(t *testing.T) {
	require.Empty(t, ask(t, created(pod())))
	require.Empty(t, ask(t, created(pod(onNode("n1")))))
	require.Empty(t, ask(t, created(pod(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}))))
	require.Empty(t, ask(t, created(pod(func(p *corev1.Pod) { // all of it on the container
		p.Spec.Containers[0].SecurityContext.RunAsNonRoot = new(true)
		p.Spec.Containers[0].SecurityContext.SeccompProfile = p.Spec.SecurityContext.SeccompProfile
		p.Spec.SecurityContext = nil
	}))))
	require.Empty(t, ask(t, deleted(pod())))
	require.Empty(t, ask(t, deleted(pod(onNode("n1")))))
}

func TestAPodOnAnotherNodeIsRefused(t *testing.T) {
	const want = `gpu-validator may have pods on its own node, "n1", alone: by spec.nodeName, or by a required node affinity to metadata.name`
	for name, p := range map[string]*corev1.Pod{
		"node name":        pod(onNode("n2")),
		"affinity":         pod(func(p *corev1.Pod) { required(p).NodeSelectorTerms[0] = own("n2") }),
		"one of two terms": pod(func(p *corev1.Pod) { required(p).NodeSelectorTerms = append(required(p).NodeSelectorTerms, own("n2")) }),
		"any node":         pod(func(p *corev1.Pod) { p.Spec.Affinity = nil }),
		"not this node": pod(func(p *corev1.Pod) {
			required(p).NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}),
		"by label": pod(func(p *corev1.Pod) {
			t := &required(p).NodeSelectorTerms[0]
			t.MatchExpressions, t.MatchFields = t.MatchFields, nil
		}),
		"this one and that": pod(func(p *corev1.Pod) { required(p).NodeSelectorTerms[0].MatchFields[0].Values = []string{"n1", "n2"} }),
	} {
		require.Equal(t, want, ask(t, created(p)), name)
		require.Equal(t, want, ask(t, deleted(p)), name)
	}
	r := created(pod())
	r.node = "-"
	require.NotEmpty(t, ask(t, r))
}

// asDriver makes it the pod that proves the driver: all GPUs are given to it.
func asDriver(p *corev1.Pod) {
	p.Name = "nvidia-driver-validation-n1"
	p.Annotations = map[string]string{"gpuready.io/management": "true"}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "GPUREADY_INJECTION", Value: "expected"}}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: {}, corev1.ResourceMemory: {}}, Limits: corev1.ResourceList{corev1.ResourceMemory: {}},
	}
}

func TestThePodThatProvesTheDriverIsGivenGPUsAndRequestsNone(t *testing.T) {
	const want = "the pod nvidia-driver-validation has one container and requests no devices, since it is given them all"
	require.Empty(t, ask(t, created(pod(asDriver))))
	require.Empty(t, ask(t, deleted(pod(asDriver, onNode("n1")))))
	for name, change := range map[string]func(*corev1.Pod){
		"a GPU": func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1") },
		"a GPU requested": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
		},
		"a claim": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		},
		"a second container": func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
		"an init container":  func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, p.Spec.Containers[0]) },
	} {
		require.Equal(t, want, ask(t, created(pod(asDriver, change))), name)
	}
	require.NotEmpty(t, ask(t, created(pod(asDriver, func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.Privileged = new(true) }))))
	require.NotEmpty(t, ask(t, created(pod(asDriver, func(p *corev1.Pod) { p.OwnerReferences = nil }))))
	require.NotEmpty(t, ask(t, created(pod(asDriver, onNode("n2")))))
}

func TestAPodHasTheNameOfItsNode(t *testing.T) {
	const want = "gpu-validator has two pods, nvidia-driver-validation-<node> and nvidia-device-plugin-validation-<node>: another name would be in the way of another node's"
	for _, name := range []string{
		"nvidia-device-plugin-validation-n2", "nvidia-device-plugin-validation-", "nvidia-driver-validation-n2", "nvidia-driver-validation-",
		"nvidia-driver-validation-6f1c00000000000000000000000000ff", "gpu-validator-workload-n1", "x", "",
	} {
		require.Equal(t, want, ask(t, created(pod(func(p *corev1.Pod) { p.Name = name }))), name)
	}
	long := strings.Repeat("n", 240)
	for _, prefix := range []string{"nvidia-device-plugin-validation-", "nvidia-driver-validation-"} {
		r := created(pod(func(p *corev1.Pod) {
			p.Name = prefix + "6f1c00000000000000000000000000ff"
			required(p).NodeSelectorTerms[0] = own(long)
		}))
		r.node = long
		require.Empty(t, ask(t, r), "of a name that is too long there is a hash")
	}
}

func TestAPodOfOthersIsNotDeleted(t *testing.T) {
	agent := pod(onNode("n1"), func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })
	require.Equal(t, "gpu-validator creates and deletes only pods that a pod owns", ask(t, deleted(agent)))
	agent.OwnerReferences = nil
	require.NotEmpty(t, ask(t, deleted(agent)))
	require.NotEmpty(t, ask(t, created(agent)))
}

func TestAPodCannotDoMoreThanAnyOther(t *testing.T) {
	const (
		account    = "a pod of gpu-validator has no service account but default, and automountServiceAccountToken is false"
		host       = "a pod of gpu-validator has no part of the host, and no volumes but emptyDir"
		agent      = "a pod of gpu-validator is no node agent, but for nvidia-driver-validation, and of the priority class gpuready-validator-workload"
		restricted = "a pod of gpu-validator is restricted, as the Pod Security Standards say"
		secrets    = "a pod of gpu-validator reads no Secrets"
	)
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	security := func(change func(*corev1.SecurityContext)) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { change(c.SecurityContext) })
	}
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"a high priority":    {func(p *corev1.Pod) { p.Spec.PriorityClassName = "important" }, agent},
		"no priority":        {func(p *corev1.Pod) { p.Spec.PriorityClassName = "" }, agent},
		"a service account":  {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gpu-toolkit" }, account},
		"a token":            {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, account},
		"host network":       {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, host},
		"host PIDs":          {func(p *corev1.Pod) { p.Spec.HostPID = true }, host},
		"host IPC":           {func(p *corev1.Pod) { p.Spec.HostIPC = true }, host},
		"a host path":        {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), host},
		"a Secret":           {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), host},
		"a token by hand":    {volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}), host},
		"a host port":        {container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}} }), host},
		"injected devices":   {func(p *corev1.Pod) { p.Annotations = map[string]string{"gpuready.io/management": "true"} }, agent},
		"priority":           {func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, agent},
		"privileged":         {security(func(s *corev1.SecurityContext) { s.Privileged = new(true) }), restricted},
		"escalation":         {security(func(s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = nil }), restricted},
		"capabilities kept":  {security(func(s *corev1.SecurityContext) { s.Capabilities = nil }), restricted},
		"a capability":       {security(func(s *corev1.SecurityContext) { s.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} }), restricted},
		"SELinux type":       {security(func(s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }), restricted},
		"seccomp":            {security(func(s *corev1.SecurityContext) { s.SeccompProfile = &corev1.SeccompProfile{Type: "Unconfined"} }), restricted},
		"AppArmor":           {security(func(s *corev1.SecurityContext) { s.AppArmorProfile = &corev1.AppArmorProfile{Type: "Unconfined"} }), restricted},
		"/proc":              {security(func(s *corev1.SecurityContext) { s.ProcMount = new(corev1.UnmaskedProcMount) }), restricted},
		"root":               {security(func(s *corev1.SecurityContext) { s.RunAsUser = new(int64(0)) }), restricted},
		"maybe root":         {security(func(s *corev1.SecurityContext) { s.RunAsNonRoot = new(false) }), restricted},
		"no context":         {container(func(c *corev1.Container) { c.SecurityContext = nil }), restricted},
		"no context of pod":  {func(p *corev1.Pod) { p.Spec.SecurityContext = nil }, restricted},
		"SELinux of the pod": {func(p *corev1.Pod) { p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }, restricted},
		"sysctls":            {func(p *corev1.Pod) { p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "a", Value: "b"}} }, restricted},
		"init container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
		}, restricted},
		"Secrets by name": {container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}} }), secrets},
		"a Secret's key": {container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}})
		}), secrets},
	} {
		require.Equal(t, c.want, ask(t, created(pod(c.change))), name)
	}
	require.Equal(t, "gpu-validator creates and deletes pods, it does not change them",
		ask(t, request{operation: admission.Update, resource: "pods", object: pod(), old: pod()}))
}

// --- events ---

func event(kind, name string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "n1.0123456789abcdef"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name},
		Reason:         "XID", Type: corev1.EventTypeWarning,
	}
}

func TestEventsAreOfItsOwnNode(t *testing.T) {
	const want = `gpu-validator may tell of the Node that its pod runs on, "n1", alone`
	require.Empty(t, ask(t, request{operation: admission.Create, resource: "events", object: event("Node", "n1")}))
	counted := event("Node", "n1")
	counted.Count = 2
	require.Empty(t, ask(t, request{operation: admission.Update, resource: "events", object: counted, old: event("Node", "n1")}))

	for _, name := range []string{"n2.0123456789abcdef", "n1", "n10.0123456789abcdef", "n1.example.0123456789abcdef", ""} {
		taken := event("Node", "n1")
		taken.Name = name
		require.Equal(t, want, ask(t, request{operation: admission.Create, resource: "events", object: taken}), "%q is in the way of another node's", name)
	}
	long := event("Node", strings.Repeat("n", 240))
	long.Name = strings.Repeat("n", 200) + ".0123456789abcdef"
	require.Empty(t, ask(t, request{operation: admission.Create, resource: "events", object: long, node: strings.Repeat("n", 240)}))
	require.Equal(t, want, ask(t, request{operation: admission.Create, resource: "events", object: event("Node", "n2")}))
	require.Equal(t, want, ask(t, request{operation: admission.Create, resource: "events", object: event("Pod", "n1")}))
	require.Equal(t, want, ask(t, request{operation: admission.Update, resource: "events", object: event("Node", "n1"), old: event("Node", "n2")}))
	require.NotEmpty(t, ask(t, request{operation: admission.Delete, resource: "events", old: event("Node", "n1")}))
	require.Equal(t, strings.Replace(want, "n1", "", 1),
		ask(t, request{operation: admission.Create, resource: "events", object: event("Node", "n1"), node: "-"}))
}
