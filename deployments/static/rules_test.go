// Package static tests the manifests in this folder.
package static

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/test/lab/built"
	validation "github.com/gpuready/gpuready/validator/workload"
)

// document is a document of a manifest.
type document struct {
	file, kind, name string
	yaml             []byte
}

// workload is a document that creates pods.
type workload struct {
	document
	selector *metav1.LabelSelector // nil: a Pod, or a Job's own
	update   appsv1.DaemonSetUpdateStrategy
	pod      corev1.PodTemplateSpec
}

// programs are the programs of our images.
var programs = map[string]string{
	"gpuready/device-plugin":    "gpu-device-plugin",
	"gpuready/dra-driver":       "gpu-dra-driver",
	"gpuready/toolkit":          "gpu-toolkit",
	"gpuready/validator":        "gpu-validator",
	"gpuready/cuda-samples":     "vectoradd",
	"gpuready/driver":           "gpu-driver",
	"gpuready/driver-simulator": "gpusim",
	"gpuready/operator":         "gpu-operator",
}

// privileged are the privileged containers; docs/install.md has the reasons.
var privileged = []string{
	"gpuready.yaml/nvidia-container-toolkit-daemonset/toolkit",
	"gpuready-privileged.yaml/nvidia-container-toolkit-daemonset/toolkit",
	"gpuready-privileged.yaml/nvidia-device-plugin-daemonset/device-plugin",
	"gpuready-privileged.yaml/nvidia-operator-validator/validator",
	"gpuready-privileged-runtime.yaml/nvidia-container-toolkit-daemonset/toolkit",
	"gpuready-privileged-runtime.yaml/nvidia-device-plugin-daemonset/device-plugin",
	"gpuready-privileged-runtime.yaml/nvidia-operator-validator/validator",
	"examples/shadow.yaml/gpuready-shadow/shadow",
	"mps.yaml/nvidia-device-plugin-mps-control-daemon/mps-daemon",
	"driver.yaml/nvidia-driver-daemonset/nvidia-driver-ctr",
	"simulated-driver.yaml/nvidia-driver-daemonset/driver",
	"uninstall.yaml/gpuready-uninstall/uninstall",
	"uninstall.yaml/gpuready-uninstall/mps-uninstall",
}

func files(t *testing.T) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".yaml" {
			all = append(all, path)
		}
		return err
	}))
	require.NotEmpty(t, all)
	return all
}

var parsed []document // what documents returns

// documents returns the documents of all manifests.
func documents(t *testing.T) []document {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	var all []document
	for _, name := range files(t) {
		file, err := os.Open(name)
		require.NoError(t, err)
		defer file.Close()
		reader := yamlreader.NewDocumentDecoder(file)
		defer reader.Close()
		for {
			chunk := make([]byte, 1<<20)
			n, err := reader.Read(chunk)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			var head metav1.PartialObjectMetadata
			require.NoError(t, yaml.Unmarshal(chunk[:n], &head), name)
			if head.Kind != "" {
				all = append(all, document{name, head.Kind, head.Name, chunk[:n]})
			}
		}
	}
	parsed = all
	return all
}

func workloads(t *testing.T) []workload {
	t.Helper()
	var all []workload
	for _, d := range documents(t) {
		w := workload{document: d}
		strict := func(into any) { require.NoError(t, yaml.UnmarshalStrict(d.yaml, into), d.file) }
		switch d.kind {
		case "DaemonSet":
			var o appsv1.DaemonSet
			strict(&o)
			w.selector, w.update, w.pod = o.Spec.Selector, o.Spec.UpdateStrategy, o.Spec.Template
		case "Deployment":
			var o appsv1.Deployment
			strict(&o)
			w.selector, w.pod = o.Spec.Selector, o.Spec.Template
		case "Job":
			var o batchv1.Job
			strict(&o)
			w.pod = o.Spec.Template
		case "Pod":
			var o corev1.Pod
			strict(&o)
			w.pod = corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		default:
			continue
		}
		all = append(all, w)
	}
	require.NotEmpty(t, all)
	return all
}

func (w workload) String() string { return w.file + "/" + w.name }

// containers returns all containers, the init containers first.
func (w workload) containers() []corev1.Container {
	return slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
}

// ours reports whether a container runs an image of ours, and returns its program.
func ours(c corev1.Container) (program string, is bool) {
	repository, _, _ := strings.Cut(c.Image, ":")
	program, is = programs[repository]
	return program, is
}

func TestEachImageHasItsVersion(t *testing.T) {
	tag := regexp.MustCompile(`gpuready/[a-z-]+:(\S+?)["\s]`)
	for _, name := range files(t) {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, found := range tag.FindAllStringSubmatch(string(data), -1) {
			require.Equal(t, version.Release(), found[1], name)
		}
	}
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			repository, tag, _ := strings.Cut(c.Image, ":")
			require.NotContains(t, []string{"", "latest"}, tag, "%s: %s", w, c.Image)
			require.Equal(t, corev1.PullIfNotPresent, c.ImagePullPolicy, "%s/%s", w, c.Name)
			if strings.HasPrefix(repository, "gpuready/") {
				require.Contains(t, programs, repository, w)
			}
		}
	}
}

func TestEachContainerIsBounded(t *testing.T) {
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				require.Contains(t, c.Resources.Requests, name, "%s/%s", w, c.Name)
			}
			require.Contains(t, c.Resources.Limits, corev1.ResourceMemory, "%s/%s", w, c.Name)
			// A limit would slow down the node's startup.
			require.NotContains(t, c.Resources.Limits, corev1.ResourceCPU, "%s/%s", w, c.Name)
		}
	}
}

func TestOnlyListedContainersArePrivileged(t *testing.T) {
	var found []string
	for _, w := range workloads(t) {
		spec := w.pod.Spec
		require.False(t, spec.HostNetwork || spec.HostIPC, w)
		require.Equal(t, w.file == "mps.yaml" || w.file == "driver.yaml", spec.HostPID, w)
		for _, c := range w.containers() {
			at := w.String() + "/" + c.Name
			s := c.SecurityContext
			require.NotNil(t, s, at)
			if s.Privileged != nil && *s.Privileged {
				found = append(found, at)
				continue
			}
			require.NotNil(t, s.AllowPrivilegeEscalation, at)
			require.False(t, *s.AllowPrivilegeEscalation, at)
			require.NotNil(t, s.Capabilities, at)
			require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, s.Capabilities, at)
			profile := s.SeccompProfile
			if profile == nil && spec.SecurityContext != nil {
				profile = spec.SecurityContext.SeccompProfile
			}
			require.NotNil(t, profile, at)
			require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, profile.Type, at)
		}
		for _, c := range w.containers() {
			// The driver's daemons write to the image's folder that is their root.
			if program, is := ours(c); is && program != "gpu-driver" {
				require.True(t, c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem, "%s/%s", w, c.Name)
			}
		}
	}
	require.ElementsMatch(t, privileged, found)
}

// The host's root is read-only for the toolkit, and its writable mounts are at the
// host's paths.
func TestToolkitWritesOnlyToListedFolders(t *testing.T) {
	want := []string{"/dev", "/run/cdi", "/run/nvidia/gpuready/toolkit", "/usr/local/nvidia/gpuready"}
	found := 0
	for _, w := range workloads(t) {
		if w.name != "nvidia-container-toolkit-daemonset" {
			continue
		}
		found++
		paths := map[string]string{}
		for _, v := range w.pod.Spec.Volumes {
			require.NotNil(t, v.HostPath, w)
			paths[v.Name] = v.HostPath.Path
		}
		require.Len(t, w.containers(), 1, w)
		c := w.containers()[0]
		require.Contains(t, c.Args, "--host-root=/host", w)
		var written []string
		for _, m := range c.VolumeMounts {
			require.Equal(t, filepath.Clean("/host"+paths[m.Name]), m.MountPath, w)
			require.Equal(t, m.MountPath == "/host", m.ReadOnly, "%s: %s", w, m.MountPath)
			if !m.ReadOnly {
				written = append(written, paths[m.Name])
			}
		}
		all := want
		configures := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "RUNTIME_RESTART_MODE" && e.Value != "" })
		require.Equal(t, strings.Contains(w.file, "runtime"), configures, "%s: who configures a runtime says so by its name", w)
		if configures {
			all = append(slices.Clone(want), "/etc/containerd")
		}
		require.ElementsMatch(t, all, written, w)
	}
	require.Equal(t, 3, found)
}

// The manifest cannot know which nodes had their runtime configured, nor with which
// handler.
func TestUninstallRestoresTheRuntime(t *testing.T) {
	for _, w := range workloads(t) {
		if w.file == "uninstall.yaml" {
			require.Equal(t, []string{"restore", "--host-root=/host", "--runtime-restart-mode=auto"}, w.containers()[0].Args)
			return
		}
	}
	t.Fatal("there is no uninstall.yaml")
}

// It is mounted in a container, and other containers get it from the host.
func TestMPSSharedMemoryIsVisibleToTheHost(t *testing.T) {
	found := 0
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			for _, m := range c.VolumeMounts {
				if w.file == "mps.yaml" && m.MountPath == "/host"+mps.Root(&config.Config{}) || c.Name == "mps-uninstall" {
					found++
					require.NotNil(t, m.MountPropagation, "%s/%s", w, c.Name)
					require.Equal(t, corev1.MountPropagationBidirectional, *m.MountPropagation, "%s/%s", w, c.Name)
				}
			}
		}
	}
	require.Equal(t, 2, found)
}

// tokenUsers use the API server.
var tokenUsers = []string{"gpu-validator", "gpuready-operator", "gpu-dra-driver"}

func TestOnlyListedAgentsHaveAToken(t *testing.T) {
	for _, w := range workloads(t) {
		automount := w.pod.Spec.AutomountServiceAccountToken
		require.NotNil(t, automount, w)
		require.Equal(t, slices.Contains(tokenUsers, w.pod.Spec.ServiceAccountName), *automount, w)
	}
	for _, d := range documents(t) {
		if d.kind != "ServiceAccount" || slices.Contains(tokenUsers, d.name) {
			continue
		}
		var account corev1.ServiceAccount
		require.NoError(t, yaml.UnmarshalStrict(d.yaml, &account))
		require.NotNil(t, account.AutomountServiceAccountToken, d.name)
		require.False(t, *account.AutomountServiceAccountToken, d.name)
	}
}

func TestRightsAreExactlyThoseUsed(t *testing.T) {
	agents, mig, exporter, dra := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, d := range documents(t) {
		rights := agents
		switch d.file {
		case "operator.yaml":
			continue
		case "mig-manager.yaml":
			rights = mig
		case "dcgm-exporter.yaml":
			rights = exporter
		case "dra-driver.yaml":
			rights = dra
		}
		switch d.kind {
		case "Role", "ClusterRole":
			var role rbacv1.Role
			require.NoError(t, yaml.UnmarshalStrict(d.yaml, &role))
			for _, r := range role.Rules {
				require.Len(t, r.APIGroups, 1, d.name)
				require.True(t, r.APIGroups[0] == "" || d.file == "dra-driver.yaml" && r.APIGroups[0] == "resource.k8s.io", d.name)
				rights[role.Namespace+"/"+strings.Join(r.Resources, ",")+": "+strings.Join(r.Verbs, ",")] = true
			}
		case "RoleBinding", "ClusterRoleBinding":
			var binding rbacv1.RoleBinding
			require.NoError(t, yaml.UnmarshalStrict(d.yaml, &binding))
			want := rbacv1.Subject{Kind: "ServiceAccount", Name: "gpu-validator", Namespace: "gpuready"}
			if d.file == "dra-driver.yaml" {
				want.Name = "gpu-dra-driver"
			}
			if account, ok := map[string]string{"mig-manager.yaml": "gpu-mig-manager", "dcgm-exporter.yaml": "gpu-dcgm-exporter"}[d.file]; ok {
				want = rbacv1.Subject{Kind: "ServiceAccount", Name: account, Namespace: operatorNamespace}
			}
			require.Equal(t, []rbacv1.Subject{want}, binding.Subjects, "%s: %s", d.file, d.name)
		}
	}
	require.Equal(t, map[string]bool{
		"/nodes: get,watch,patch": true, "/nodes/status: patch": true,
		"default/events: create,patch":           true,
		"gpuready/pods: create,get,watch,delete": true,
	}, agents)
	require.Equal(t, map[string]bool{
		"/nodes: get,list,watch,update,patch":                               true,
		operatorNamespace + "/pods: get,list,watch,delete,deletecollection": true,
	}, mig)
	require.Equal(t, map[string]bool{"/pods: get,list,watch": true}, exporter)
	require.Equal(t, map[string]bool{
		"/resourceslices: list,watch,create,update,delete": true, "/resourceclaims: get": true, "/nodes: get": true,
	}, dra)
}

// The MIG manager's token may change Nodes.
func TestMIGManagerRightsAreOptional(t *testing.T) {
	policies := 0
	for _, d := range documents(t) {
		hasNodeName := strings.Contains(d.name, "mig-manager")
		switch d.kind {
		case "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding":
			require.Equal(t, d.file == "mig-manager.yaml", hasNodeName, "%s: %s %s", d.file, d.kind, d.name)
		case "ValidatingAdmissionPolicy":
			require.Equal(t, d.file == "mig-manager.yaml", hasNodeName, "%s: %s %s", d.file, d.kind, d.name)
			if hasNodeName {
				policies++
			}
		}
	}
	require.Equal(t, 2, policies)
}

func TestValidatorPodHasLowPriority(t *testing.T) {
	found := 0
	for _, d := range documents(t) {
		if d.kind != "PriorityClass" {
			continue
		}
		found++
		var class schedulingv1.PriorityClass
		require.NoError(t, yaml.UnmarshalStrict(d.yaml, &class))
		require.Equal(t, "gpuready-validator-workload", class.Name)
		require.Less(t, class.Value, int32(-10), "cluster-autoscaler's cutoff")
		require.Equal(t, corev1.PreemptNever, *class.PreemptionPolicy)
		require.False(t, class.GlobalDefault)
	}
	require.Equal(t, 4, found, "with and without privileges, with the runtime configured, and with the operator")
}

// It checks the two names with room for a Node's name, and the program. The tests of
// .ci/schema/policy compare the other fields of the pods with those that
// validator/workload creates.
func TestPoliciesMatchTheValidatorsPods(t *testing.T) {
	found := map[string]int{}
	for _, d := range documents(t) {
		if d.kind != "ValidatingAdmissionPolicy" {
			continue
		}
		found[d.name]++
		text := string(d.yaml)
		switch d.name {
		case "gpuready-validator-own-pods":
			for _, role := range []validation.Role{validation.DevicePlugin, validation.Driver} {
				require.Contains(t, text, fmt.Sprintf("variables.name == '%s-' + variables.node\n", role), d.file)
			}
			require.Contains(t, text, fmt.Sprintf("variables.node.size() > %d && variables.name.matches('^nvidia-(driver|device-plugin)-validation-[0-9a-f]{32}$')", validation.LongestNode), d.file)
		case "gpuready-validator-pod-fields":
			require.Contains(t, text, "== '"+validation.PriorityClass+"'", d.file)
			require.Contains(t, text, "command[1] == '"+validation.PodCommand+"'", d.file)
			require.Contains(t, text, "env[0].name == '"+injection.Variable+"'", d.file)
		}
	}
	require.Equal(t, found["gpuready-validator-own-pods"], found["gpuready-validator-pod-fields"])
	require.Equal(t, 4, found["gpuready-validator-pod-fields"])
}

func TestServiceAccountsExist(t *testing.T) {
	for _, w := range workloads(t) {
		name := w.pod.Spec.ServiceAccountName
		if name == "" {
			continue
		}
		require.True(t, slices.ContainsFunc(documents(t), func(d document) bool {
			return d.file == w.file && d.kind == "ServiceAccount" && d.name == name
		}), "%s: %s has no ServiceAccount %s", w.file, w.name, name)
	}
}

func TestSelectorsMatchTheirPods(t *testing.T) {
	for _, w := range workloads(t) {
		require.Equal(t, w.name, w.pod.Labels["app"], w)
		if w.selector != nil {
			require.Equal(t, &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}}, w.selector, w)
		}
		if strings.HasPrefix(w.file, "examples") {
			continue
		}
		require.Equal(t, "gpuready", w.pod.Labels["app.kubernetes.io/part-of"], w)
	}
}

func TestOnlyTheDRADriverMayRunTwiceOnANode(t *testing.T) {
	for _, w := range workloads(t) {
		if w.kind != "DaemonSet" {
			continue
		}
		require.Equal(t, appsv1.RollingUpdateDaemonSetStrategyType, w.update.Type, w)
		require.NotNil(t, w.update.RollingUpdate.MaxUnavailable, w)
		if w.name == "gpu-dra-driver" { // it shares its record with its successor
			require.Equal(t, "10%", w.update.RollingUpdate.MaxSurge.StrVal, w)
			require.Zero(t, w.update.RollingUpdate.MaxUnavailable.IntValue(), w)
		} else {
			require.Zero(t, w.update.RollingUpdate.MaxSurge.IntValue(), w)
		}
		require.Equal(t, "system-node-critical", w.pod.Spec.PriorityClassName, w)
	}
}

func TestDaemonsAreProbedOnNamedPorts(t *testing.T) {
	for _, w := range workloads(t) {
		for _, c := range w.pod.Spec.Containers {
			if w.kind != "DaemonSet" || w.name == "gpuready-uninstall" {
				continue
			}
			at := w.String() + "/" + c.Name
			require.Len(t, c.Ports, 1, at)
			for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
				require.NotNil(t, probe, at)
				if program(t, c) == "gpu-driver" && probe == c.ReadinessProbe {
					continue // see TestDriverIsProbedByItsOwnProgram
				}
				require.Equal(t, path, probe.HTTPGet.Path, at)
				require.Equal(t, c.Ports[0].Name, probe.HTTPGet.Port.StrVal, at)
			}
			require.Contains(t, helpOf(t, program(t, c), command(c)), fmt.Sprintf(`":%d"`, c.Ports[0].ContainerPort), at)
		}
	}
}

// The driver's image has no shell, and the probes read the same state as the validator.
func TestDriverIsProbedByItsOwnProgram(t *testing.T) {
	found := 0
	for _, w := range workloads(t) {
		for _, c := range w.pod.Spec.Containers {
			if program, is := ours(c); !is || program != "gpu-driver" {
				continue
			}
			found++
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe} {
				require.NotNil(t, probe, w)
				require.NotNil(t, probe.Exec, w)
				require.Equal(t, []string{"gpu-driver", "probe"}, probe.Exec.Command, w)
			}
			require.Nil(t, c.Command, w)
			require.Nil(t, c.Lifecycle, w)
			helpOf(t, "gpu-driver", "probe")
		}
	}
	require.Equal(t, 1, found)
}

// The check for the host's driver runs first, and can neither write nor gain
// privileges.
func TestDriverRunsOnlyWithoutAHostDriver(t *testing.T) {
	for _, w := range workloads(t) {
		if w.file != "driver.yaml" {
			continue
		}
		require.Len(t, w.pod.Spec.InitContainers, 1, w)
		c := w.pod.Spec.InitContainers[0]
		require.Equal(t, []string{"host-driver"}, c.Args, w)
		require.Equal(t, "gpu-validator", program(t, c), w)
		require.True(t, *c.SecurityContext.RunAsNonRoot, w)
		return
	}
	t.Fatal("there is no driver.yaml")
}

func TestInjectionAnnotationsMatchTheToolkit(t *testing.T) {
	for _, w := range workloads(t) {
		variable := ""
		for _, c := range w.pod.Spec.Containers {
			for _, e := range c.Env {
				if e.Name == injection.Variable {
					variable = e.Value
				}
			}
		}
		annotated := w.pod.Annotations[injection.Annotation] == "true"
		require.Equal(t, annotated, variable == injection.Expected, "%s: annotation and variable go together", w)
		require.Equal(t, annotated, len(w.pod.Spec.InitContainers) == 1 && w.pod.Spec.InitContainers[0].Name == "wait", "%s: who is injected waits for it", w)
		if annotated {
			require.Empty(t, w.pod.Spec.InitContainers[0].Env, w)
			require.False(t, strings.Contains(w.file, "privileged"), w)
		}
	}
}

// --- flags and variables of the programs ---

func program(t *testing.T, c corev1.Container) string {
	t.Helper()
	name, is := ours(c)
	require.True(t, is, c.Image)
	return name
}

// command is the subcommand in a container's arguments, "" for none.
func command(c corev1.Container) string {
	if len(c.Args) > 0 && !strings.HasPrefix(c.Args[0], "-") {
		return c.Args[0]
	}
	return ""
}

var helps = map[string]string{}

// helpOf returns a program's help for a subcommand.
func helpOf(t *testing.T, program, command string) string {
	t.Helper()
	if help, asked := helps[program+" "+command]; asked {
		return help
	}
	args := []string{"--help"}
	if command != "" {
		args = []string{command, "--help"}
	}
	p := built.Start(t, program, args)
	code, err := p.Wait(t.Context())
	require.NoError(t, err)
	require.Zero(t, code, p.Output())
	helps[program+" "+command] = p.Output()
	return p.Output()
}

// given are variables without a flag, which runtimes and the toolkit set or read.
var given = []string{injection.Variable, "NVIDIA_VISIBLE_DEVICES"}

// hasNodeName reports whether a container has its node's name without a flag for it, as
// NVIDIA's driver containers do.
func hasNodeName(program, variable string) bool {
	return program == "gpu-driver" && variable == "NODE_NAME"
}

func TestProgramsKnowTheirFlagsAndVariables(t *testing.T) {
	configMaps := map[string]map[string]string{}
	for _, d := range documents(t) {
		if d.kind == "ConfigMap" {
			var m corev1.ConfigMap
			require.NoError(t, yaml.UnmarshalStrict(d.yaml, &m))
			configMaps[m.Name] = m.Data
		}
	}
	flag := regexp.MustCompile(`^--[a-z-]+`)
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			if _, is := ours(c); !is {
				continue
			}
			at := w.String() + "/" + c.Name
			help := helpOf(t, program(t, c), command(c))
			for _, arg := range c.Args {
				if name := flag.FindString(arg); name != "" {
					require.Regexp(t, regexp.QuoteMeta(name)+`\b`, help, at)
				}
			}
			variables := []string{}
			for _, e := range c.Env {
				variables = append(variables, e.Name)
			}
			for _, from := range c.EnvFrom {
				require.Contains(t, configMaps, from.ConfigMapRef.Name, at)
				for name := range configMaps[from.ConfigMapRef.Name] {
					variables = append(variables, name)
				}
			}
			for _, name := range variables {
				if !slices.Contains(given, name) && !hasNodeName(program(t, c), name) {
					require.Contains(t, help, "[$"+name+"]", at)
				}
			}
		}
	}
}
