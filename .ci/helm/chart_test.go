package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

const dir = "../../deployments/helm/gpuready"

// load loads the chart from its folder.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(dir)
	require.NoError(t, err)
	return c
}

type object = map[string]any

// render returns the objects of the chart with values, in YAML.
func render(t *testing.T, r renderOptions, values string) []object {
	t.Helper()
	require.NoError(t, yaml.Unmarshal([]byte(values), &r.Values))
	r.Namespace = "somewhere"
	if r.Kube == "" {
		r.Kube = "v1.34.0" // helm takes an old one in tests
	}
	files, err := renderChart(load(t), r)
	require.NoError(t, err)
	return split(t, files)
}

// split returns the objects in files.
func split(t *testing.T, files map[string]string) (all []object) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for text := range strings.SplitSeq(files[name], "\n---") {
			var o object
			require.NoError(t, yaml.UnmarshalStrict([]byte(text), &o), "%s\n%s", name, text)
			if o != nil {
				require.NotEmpty(t, o["kind"], name)
				all = append(all, o)
			}
		}
	}
	return all
}

// has returns the names of the objects of a kind.
func has(all []object, kind string) (names []string) {
	for _, o := range all {
		if o["kind"] == kind {
			names = append(names, o["metadata"].(object)["name"].(string))
		}
	}
	return names
}

const openshift = "security.openshift.io/v1"

func TestInstalledObjectsDependOnTheCluster(t *testing.T) {
	plain := render(t, renderOptions{}, "")
	require.Empty(t, has(plain, "SecurityContextConstraints"))
	require.Len(t, has(plain, "ValidatingAdmissionPolicy"), 5)
	require.Len(t, has(render(t, renderOptions{}, "migManager: {enabled: true}"), "ValidatingAdmissionPolicy"), 7)
	require.Equal(t, []string{"gpu-cluster-policy"}, has(plain, "ClusterPolicy"))
	require.Equal(t, []string{"gpuready-rhcos-version"}, has(plain, "NodeFeatureRule"))
	require.Empty(t, has(plain, "Namespace"))

	there := render(t, renderOptions{Versions: []string{openshift}}, "")
	require.Len(t, has(there, "SecurityContextConstraints"), 10)
	require.Empty(t, has(render(t, renderOptions{Kube: "v1.27.0"}, ""), "ValidatingAdmissionPolicy"), "they are of 1.30")
}

func TestNodeFeatureDiscoveryIsOptional(t *testing.T) {
	workers := func(all []object) bool {
		return slices.ContainsFunc(has(all, "DaemonSet"), func(name string) bool { return strings.Contains(name, "node-feature-discovery") })
	}
	require.True(t, workers(render(t, renderOptions{}, "")))
	without := render(t, renderOptions{}, "nfd: {enabled: false}")
	require.False(t, workers(without))
	require.Empty(t, has(without, "NodeFeatureRule"), "nobody knows the kind")
	require.NotEmpty(t, has(render(t, renderOptions{Versions: []string{"nfd.k8s-sigs.io/v1alpha1"}}, "nfd: {enabled: false}"), "NodeFeatureRule"))
}

func TestOperandsHaveTheirOwnNamespace(t *testing.T) {
	all := render(t, renderOptions{}, "operands: {namespace: gpu-operands}\nnfd: {enabled: false}")
	require.Equal(t, []string{"gpu-operands"}, has(all, "Namespace"))
	text, err := yaml.Marshal(all)
	require.NoError(t, err)
	require.Contains(t, string(text), "system:serviceaccount:gpu-operands:gpu-validator")
	for _, o := range all {
		metadata := o["metadata"].(object)
		name, _ := metadata["name"].(string)
		switch o["kind"] {
		case "ServiceAccount", "Deployment", "Job":
			want := "gpu-operands"
			if strings.HasPrefix(name, "gpuready-operator") {
				want = "somewhere"
			}
			require.Equal(t, want, metadata["namespace"], name)
		}
	}
}

// rights returns the rights of each account, "verb resource.group", followed by the
// namespace if they are limited to one.
func rights(t *testing.T, all []object) map[string][]string {
	t.Helper()
	type rule struct{ APIGroups, Resources, ResourceNames, Verbs []string }
	roles := map[string][]rule{}
	for _, o := range all {
		if o["kind"] == "Role" || o["kind"] == "ClusterRole" {
			var role struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Rules    []rule
			}
			convert(t, o, &role)
			key := role.Kind + " " + role.Metadata.Namespace + "/" + role.Metadata.Name
			require.NotContains(t, roles, key)
			roles[key] = role.Rules
		}
	}
	given := map[string][]string{}
	for _, o := range all {
		if o["kind"] != "RoleBinding" && o["kind"] != "ClusterRoleBinding" {
			continue
		}
		var binding struct {
			Metadata struct{ Name, Namespace string }
			RoleRef  struct{ Kind, Name string }
			Subjects []struct{ Kind, Name, Namespace string }
		}
		convert(t, o, &binding)
		namespace, where := binding.Metadata.Namespace, ""
		if namespace != "" {
			where = " in " + namespace
		}
		if binding.RoleRef.Kind == "ClusterRole" {
			namespace = ""
		}
		rules, is := roles[binding.RoleRef.Kind+" "+namespace+"/"+binding.RoleRef.Name]
		require.True(t, is, "%s binds a role that is not the chart's", binding.Metadata.Name)
		for _, subject := range binding.Subjects {
			require.Equal(t, "ServiceAccount", subject.Kind, binding.Metadata.Name)
			for _, r := range rules {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						given[subject.Name] = append(given[subject.Name], strings.TrimSuffix(verb+" "+resource+"."+r.APIGroups[0], ".")+where)
					}
				}
			}
		}
	}
	return given
}

// This list shows the value of a stolen token. The rights of the operator and the
// chart's Jobs are in files/rights.yaml.
func TestTokenRightsAreListed(t *testing.T) {
	validator := []string{
		"get nodes", "watch nodes", "patch nodes", "patch nodes/status", "create events in default", "patch events in default",
		"create pods in somewhere", "get pods in somewhere", "watch pods in somewhere", "delete pods in somewhere",
	}
	mig := []string{
		"get nodes", "list nodes", "watch nodes", "update nodes", "patch nodes",
		"get pods in somewhere", "list pods in somewhere", "watch pods in somewhere", "delete pods in somewhere", "deletecollection pods in somewhere",
	}
	dra := []string{
		"list resourceslices.resource.k8s.io", "watch resourceslices.resource.k8s.io", "create resourceslices.resource.k8s.io", "update resourceslices.resource.k8s.io",
		"delete resourceslices.resource.k8s.io", "get resourceclaims.resource.k8s.io", "get nodes",
	}
	for values, want := range map[string]map[string][]string{
		"": {},
		"migManager: {enabled: true, repository: a, image: b, version: c}": {"gpu-mig-manager": mig},
		"dcgmExporter: {enabled: true, enablePodUID: true}":                {"gpu-dcgm-exporter": {"get pods", "list pods", "watch pods"}},
	} {
		want["gpu-validator"], want["gpu-dra-driver"] = validator, dra
		given := rights(t, render(t, renderOptions{Versions: []string{openshift}}, values+"\nnfd: {enabled: false}"))
		for account, all := range given {
			for _, right := range all {
				require.NotRegexp(t, `\*|^(bind|escalate|impersonate|approve|sign) |^(list|watch) secrets|serviceaccounts|rolebindings|roles\.|/(exec|attach|portforward|proxy|ephemeralcontainers)`, right, account)
			}
			if !strings.HasPrefix(account, "gpuready-operator") {
				require.ElementsMatch(t, want[account], all, account)
				delete(want, account)
			}
		}
		require.Empty(t, want, "accounts without rights")
		require.Subset(t, []string{"gpuready-operator", "gpuready-operator-cleanup", "gpuready-operator-crds", "gpu-validator", "gpu-dra-driver", "gpu-mig-manager", "gpu-dcgm-exporter"}, slices.Collect(maps.Keys(given)))
	}
}

func TestEveryImageComesFromTheRegistry(t *testing.T) {
	all := render(t, renderOptions{Versions: []string{openshift}}, `
global: {registry: registry.example.com/mirror, imagePullSecrets: [{name: mirror}]}
node-feature-discovery: {image: {repository: registry.example.com/mirror/nfd}}
operator: {initContainer: {repository: nvcr.io/nvidia, image: cuda, version: "12"}}
driver: {usePrecompiled: true, repository: nvcr.io/nvidia, image: driver, version: "535", manager: {repository: nvcr.io/nvidia/cloud-native, image: k8s-driver-manager, version: v0.6.10}}
dcgm: {enabled: true, repository: nvcr.io/nvidia/cloud-native, image: dcgm, version: "3"}
dcgmExporter: {enabled: true, repository: "localhost:5000/a", image: dcgm-exporter, version: "3"}`)
	text, err := yaml.Marshal(all)
	require.NoError(t, err)
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\s+(?:- )?(?:repository|image): "?([^"\s]*/[^"\s]*)`).FindAllStringSubmatch(string(text), -1) {
		require.True(t, strings.HasPrefix(m[1], "registry.example.com/mirror/"), m[0])
		found++
	}
	require.GreaterOrEqual(t, found, 11)
	require.Contains(t, string(text), "value: registry.example.com/mirror/gpuready", "IMAGE_REPOSITORY")
	for _, host := range []string{"nvcr.io", "localhost", "registry.k8s.io"} {
		require.NotContains(t, string(text), host)
	}
	for _, o := range all {
		if o["kind"] == "ClusterPolicy" {
			require.Equal(t, []any{"mirror"}, o["spec"].(object)["driver"].(object)["imagePullSecrets"])
		}
	}
}

// It checks the profile of the Pod Security Standards, for operator and hooks.
func TestPodsOtherThanAgentsAreRestricted(t *testing.T) {
	found := 0
	for _, o := range render(t, renderOptions{}, "nfd: {enabled: false}\ntrustedCA: {configMapName: ca}") {
		if o["kind"] != "Deployment" && o["kind"] != "Job" {
			continue
		}
		found++
		var pod struct {
			SecurityContext struct {
				RunAsNonRoot   bool
				SeccompProfile struct{ Type string }
			}
			Volumes    []object
			Containers []struct {
				SecurityContext struct {
					AllowPrivilegeEscalation, ReadOnlyRootFilesystem *bool
					Capabilities                                     struct{ Drop []string }
				}
			}
		}
		text, err := yaml.Marshal(o["spec"].(object)["template"].(object)["spec"])
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &pod))
		require.True(t, pod.SecurityContext.RunAsNonRoot)
		require.Equal(t, "RuntimeDefault", pod.SecurityContext.SeccompProfile.Type)
		for _, v := range pod.Volumes {
			require.NotContains(t, v, "hostPath")
		}
		for _, c := range pod.Containers {
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
			require.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
		}
	}
	require.Equal(t, 3, found, "the operator and two hooks")
}
