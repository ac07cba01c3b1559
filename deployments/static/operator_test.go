package static

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

const operatorNamespace = "gpuready-system"

// flat returns rights with one verb and one resource each.
func flat(where, group string, resources, names, verbs []string) (all []string) {
	for _, resource := range resources {
		for _, verb := range verbs {
			all = append(all, strings.TrimSpace(strings.Join([]string{where, verb, resource + "." + group, strings.Join(names, ",")}, " ")))
		}
	}
	return all
}

func TestOperatorRightsAreDocumented(t *testing.T) {
	rights, err := deployments.Rights()
	require.NoError(t, err)
	namespaces := map[string]string{"cluster": "", "lease": "kube-system", "operands": operatorNamespace, "default": "default"}
	var want, given []string
	for _, r := range rights {
		namespace, here := namespaces[r.Where]
		if !here {
			continue // OpenShift's, and those of Helm's Jobs
		}
		for verb := range r.Verbs {
			want = append(want, flat(namespace, r.Group, r.Resources, r.Names, []string{verb})...)
		}
	}
	for _, d := range documents(t) {
		if d.file != "operator.yaml" || d.kind != "Role" && d.kind != "ClusterRole" || !strings.HasPrefix(d.name, "gpuready-operator") {
			continue
		}
		var role rbacv1.Role
		require.NoError(t, yaml.UnmarshalStrict(d.yaml, &role))
		for _, r := range role.Rules {
			require.Len(t, r.APIGroups, 1)
			given = append(given, flat(role.Namespace, r.APIGroups[0], r.Resources, r.ResourceNames, r.Verbs)...)
		}
	}
	require.ElementsMatch(t, want, given)
	require.NotContains(t, strings.Join(given, " "), "*")
}

// TestOperatorPodIsRestricted checks the profile of the Pod Security Standards.
func TestOperatorPodIsRestricted(t *testing.T) {
	all := slices.DeleteFunc(workloads(t), func(w workload) bool { return w.file != "operator.yaml" })
	require.Len(t, all, 1, "the operator alone: the agents are its own to make")
	spec := all[0].pod.Spec
	require.True(t, *spec.SecurityContext.RunAsNonRoot)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, spec.SecurityContext.SeccompProfile.Type)
	require.Empty(t, spec.Volumes)
	for _, c := range all[0].containers() {
		require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
		require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
		require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, c.SecurityContext.Capabilities)
	}
}

// The agents' rights in the operator's manifest are those of gpuready.yaml, in another
// namespace.
func TestOperatorManifestHasTheSameRights(t *testing.T) {
	of := func(file string) map[string]string {
		all := map[string]string{}
		for _, d := range documents(t) {
			if d.file == file && slices.Contains([]string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "PriorityClass",
				"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, d.kind) && strings.HasPrefix(d.name, "gpuready-validator") {
				var content any
				require.NoError(t, yaml.Unmarshal(d.yaml, &content))
				text, err := yaml.Marshal(content)
				require.NoError(t, err)
				key := d.kind + " " + d.name
				all[key] += strings.Join(strings.Fields(string(text)), " ") + " " // lines are folded by their length
			}
		}
		return all
	}
	static := of("gpuready.yaml")
	for key, text := range static {
		text = strings.NewReplacer("namespace: gpuready ", "namespace: "+operatorNamespace+" ", "serviceaccount:gpuready:", "serviceaccount:"+operatorNamespace+":",
			"request.namespace == 'gpuready'", "request.namespace == '"+operatorNamespace+"'", "request.namespace == ''gpuready''", "request.namespace == ''"+operatorNamespace+"''",
			"metadata.name: gpuready ", "metadata.name: "+operatorNamespace+" ").Replace(text)
		static[key] = text
	}
	require.NotEmpty(t, static)
	require.Equal(t, static, of("operator.yaml"))
}

func TestExamplesArePolicies(t *testing.T) {
	schema, err := schematest.Load()
	require.NoError(t, err)
	files, err := filepath.Glob("examples/clusterpolicy*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		policy, err := schema.Admit(t.Context(), text)
		require.NoError(t, err, file)
		require.Equal(t, "gpu-cluster-policy", policy.Name, file)
	}
}

// Where NVIDIA's definition of ClusterPolicy stays, its API accepts the policies that need none of
// our fields. It requires some.
func TestExamplesFitTheDefinitionOfNVIDIAsOperator(t *testing.T) {
	data, err := os.ReadFile("../testdata/nvidia-24.3-fields.txt")
	require.NoError(t, err)
	known := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		known[strings.TrimSuffix(strings.TrimSpace(line), "[]")] = true
	}
	var check func(file, path string, value any)
	check = func(file, path string, value any) {
		fields, isMap := value.(map[string]any)
		if known[path+".*"] || !isMap {
			require.True(t, known[path] || known[path+".*"], "%s: %s", file, path)
			return
		}
		for name, one := range fields {
			check(file, strings.TrimPrefix(path+"."+name, "."), one)
		}
	}
	for _, file := range []string{"examples/clusterpolicy.yaml", "examples/clusterpolicy-precompiled.yaml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var policy struct{ Spec map[string]any }
		require.NoError(t, yaml.Unmarshal(text, &policy))
		check(file, "", policy.Spec)
		for _, required := range []string{"daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter", "operator", "toolkit"} {
			require.Contains(t, policy.Spec, required, file)
		}
	}
}
