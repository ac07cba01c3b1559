package policy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
)

// The roles of the validator's pods, as in their names.
const (
	proveDriver = "nvidia-driver-validation"
	provePlugin = "nvidia-device-plugin-validation"
)

// pod returns a pod as gpu-validator creates it, completed as the API server does
// before it evaluates the policies, and then changed.
func pod(t *testing.T, role string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	data, err := os.ReadFile(madePods + role + ".yaml")
	require.NoError(t, err)
	p := &corev1.Pod{}
	require.NoError(t, yaml.UnmarshalStrict(data, p))
	p.UID, p.Generation, p.CreationTimestamp = "p", 1, metav1.Now()
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "gpu-validator"}}
	p.Spec.Priority, p.Spec.PreemptionPolicy = new(int32(-1000)), new(corev1.PreemptNever)
	p.Spec.DNSPolicy, p.Spec.SchedulerName = corev1.DNSClusterFirst, corev1.DefaultSchedulerName
	p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = "default", "default"
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable}
	c := &p.Spec.Containers[0]
	c.Image = variable(daemonSet(t), "VALIDATOR_IMAGE") // the file has that of no release
	c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: corev1.NotRequired})
	}
	for name, quantity := range c.Resources.Limits {
		if strings.Contains(string(name), "/") {
			c.Resources.Requests[name] = quantity
		}
	}
	for _, c := range change {
		c(p)
	}
	return p
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

func required(p *corev1.Pod) *corev1.NodeSelector {
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func own(name string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
}

// container changes the one container.
func container(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
}

// variable returns the value of a variable of the validator's DaemonSet.
func variable(d *appsv1.DaemonSet, name string) string {
	env := d.Spec.Template.Spec.Containers[0].Env
	if i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == name }); i >= 0 {
		return env[i].Value
	}
	return ""
}

// withVariable sets a variable of the validator's DaemonSet.
func withVariable(d *appsv1.DaemonSet, name, value string) *appsv1.DaemonSet {
	c := &d.Spec.Template.Spec.Containers[0]
	c.Env = append(slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }), corev1.EnvVar{Name: name, Value: value})
	return d
}

func TestValidatorPodsMayBeCreatedAndDeleted(t *testing.T) {
	for _, role := range []string{proveDriver, provePlugin} {
		require.Empty(t, evaluate(t, created(pod(t, role))), role)
		require.Empty(t, evaluate(t, deleted(pod(t, role))), role)
		require.Empty(t, evaluate(t, deleted(pod(t, role, onNode("n1"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "earlier" }))), "%s of an earlier validator", role)

		long := strings.Repeat("n", 240)
		r := created(pod(t, role, func(p *corev1.Pod) {
			p.Name = role + "-6f1c00000000000000000000000000ff"
			required(p).NodeSelectorTerms[0] = own(long)
		}))
		r.node = long
		require.Empty(t, evaluate(t, r), "of a name that is too long there is a hash")
		r = created(pod(t, role, func(p *corev1.Pod) { // what a LimitRange and a namespace's defaults add
			c := &p.Spec.Containers[0]
			c.Resources.Limits[corev1.ResourceCPU], c.Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse("4"), resource.MustParse("1Gi")
			p.Spec.NodeSelector = map[string]string{"region": "east"}
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists})
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations["kubernetes.io/limit-ranger"] = "LimitRanger plugin set: cpu limit for container vectoradd"
		}))
		require.Empty(t, evaluate(t, r), role)
	}
	single := pod(t, provePlugin, container(func(c *corev1.Container) {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			delete(list, "nvidia.com/gpu")
			list["nvidia.com/mig-1g.10gb.shared"] = resource.MustParse("1")
		}
	}))
	require.Empty(t, evaluate(t, created(single)), "any of the device plugin's resources")
}

// Its pods may use only what the DaemonSet names.
func TestPodUsesImageSecretsAndRuntimeClassOfTheDaemonSet(t *testing.T) {
	const image = "registry.example.com:5000/mirror/validator"
	of := func(d *appsv1.DaemonSet, change func(*corev1.Pod)) string {
		r := created(pod(t, provePlugin, func(p *corev1.Pod) { p.Spec.Containers[0].Image = image + ":v2" }, change))
		r.params = d
		return evaluate(t, r)
	}
	mirrored := func() *appsv1.DaemonSet { return withVariable(daemonSet(t), "VALIDATOR_IMAGE", image+":v2") }
	nothing := func(*corev1.Pod) {}
	changeValue := func(image string) func(*corev1.Pod) { return container(func(c *corev1.Container) { c.Image = image }) }
	require.Empty(t, of(mirrored(), nothing))
	for _, other := range []string{image, image + ":v1", image + "@sha256:0", image + ":v2@sha256:0", image + "2:v2", "evil.example/validator:v2", "gpuready/validator:v0.1.0", ""} {
		require.Contains(t, of(mirrored(), changeValue(other)), "the image of a pod of gpu-validator is the one that DaemonSet nvidia-operator-validator names", other)
	}
	require.NotEmpty(t, of(withVariable(daemonSet(t), "VALIDATOR_IMAGE", ""), changeValue("")), "a DaemonSet without one")

	rolling := mirrored()
	rolling.Status.UpdatedNumberScheduled = 1
	require.Empty(t, of(rolling, changeValue(image+":v1")), "a validator of the version before still runs")
	require.Empty(t, of(rolling, changeValue(image+"@sha256:0")))
	for _, other := range []string{image, image + "2:v1", "evil.example/validator:v2", "registry.example.com:5000/mirror:v2", ""} {
		require.NotEmpty(t, of(rolling, changeValue(other)), other)
	}
	seen := mirrored()
	seen.Generation++
	require.Empty(t, of(seen, changeValue(image+":v1")), "the DaemonSet has changed this moment")

	uses := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
			}
		}
	}
	const secrets = "a pod of gpu-validator uses the pull secrets and the RuntimeClass that DaemonSet nvidia-operator-validator names"
	require.Contains(t, of(mirrored(), uses("a")), secrets)
	require.Empty(t, of(withVariable(mirrored(), "VALIDATOR_IMAGE_PULL_SECRETS", "a,b"), uses("b")))
	require.Contains(t, of(withVariable(mirrored(), "VALIDATOR_IMAGE_PULL_SECRETS", "a,b"), uses("a", "c")), secrets)
	named := mirrored()
	named.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "c"}}
	require.Empty(t, of(named, uses("c")))

	class := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("nvidia") }
	require.Contains(t, of(mirrored(), class), secrets)
	require.Empty(t, of(withVariable(mirrored(), "VALIDATOR_RUNTIME_CLASS", "nvidia"), class))
}

func TestPodRunsOnlyOnItsOwnNode(t *testing.T) {
	const want = `gpu-validator may have pods on its own node, "n1", alone: by a required node affinity to metadata.name`
	for name, change := range map[string]func(*corev1.Pod){
		"node name":        onNode("n2"),
		"affinity":         func(p *corev1.Pod) { required(p).NodeSelectorTerms[0] = own("n2") },
		"one of two terms": func(p *corev1.Pod) { required(p).NodeSelectorTerms = append(required(p).NodeSelectorTerms, own("n2")) },
		"any node":         func(p *corev1.Pod) { p.Spec.Affinity = nil },
		"not this node": func(p *corev1.Pod) {
			required(p).NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		},
		"by label": func(p *corev1.Pod) {
			t := &required(p).NodeSelectorTerms[0]
			t.MatchExpressions, t.MatchFields = t.MatchFields, nil
		},
		"this one and that": func(p *corev1.Pod) { required(p).NodeSelectorTerms[0].MatchFields[0].Values = []string{"n1", "n2"} },
	} {
		require.Contains(t, evaluate(t, created(pod(t, provePlugin, change))), want, name)
		require.Contains(t, evaluate(t, deleted(pod(t, provePlugin, change))), want, name)
	}
	require.NotEmpty(t, evaluate(t, created(pod(t, provePlugin, onNode("n1")))), "the scheduler is not passed by")
	r := created(pod(t, provePlugin))
	r.node = "-"
	require.NotEmpty(t, evaluate(t, r))
}

func TestPodNameContainsItsNode(t *testing.T) {
	const want = "gpu-validator has two pods in its namespace, nvidia-driver-validation-<node> and nvidia-device-plugin-validation-<node>: another name would be in the way of another node's"
	for _, name := range []string{
		"nvidia-device-plugin-validation-n2", "nvidia-device-plugin-validation-", "nvidia-driver-validation-n2", "nvidia-driver-validation-",
		"nvidia-driver-validation-6f1c00000000000000000000000000ff", "gpu-validator-workload-n1", "x", "",
	} {
		require.Contains(t, evaluate(t, created(pod(t, provePlugin, func(p *corev1.Pod) { p.Name = name }))), want, name)
	}
	require.Contains(t, evaluate(t, created(pod(t, provePlugin, func(p *corev1.Pod) { p.Namespace = "kube-system" }))), want)
}

func TestOtherPodsAreNotAffected(t *testing.T) {
	const want = "a pod of gpu-validator has one owner, the pod that the token was made for"
	for name, change := range map[string]func(*corev1.Pod){
		"a DaemonSet's":       func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" },
		"nobody's":            func(p *corev1.Pod) { p.OwnerReferences = nil },
		"a controller's, too": func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, controller()) },
	} {
		require.Contains(t, evaluate(t, deleted(pod(t, provePlugin, onNode("n1"), change))), want, name)
		require.Contains(t, evaluate(t, created(pod(t, provePlugin, change))), want, name)
	}
	for _, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" },
		func(p *corev1.Pod) { p.OwnerReferences[0].Name = "another" },
	} {
		require.Contains(t, evaluate(t, created(pod(t, provePlugin, change))), want, "the token's own pod is the owner")
	}
}

func controller() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "theirs", UID: "x", Controller: new(true)}
}

func TestPodCannotBeChangedOrEntered(t *testing.T) {
	for _, r := range []request{
		{operation: admission.Update, resource: "pods", object: pod(t, provePlugin), old: pod(t, provePlugin)},
		{operation: admission.Update, resource: "pods/ephemeralcontainers", object: pod(t, provePlugin), old: pod(t, provePlugin)},
		{operation: admission.Update, resource: "pods/status", object: pod(t, provePlugin), old: pod(t, provePlugin)},
		{operation: admission.Update, resource: "pods/resize", object: pod(t, provePlugin), old: pod(t, provePlugin)},
		{operation: admission.Create, resource: "pods/eviction", object: pod(t, provePlugin)},
		{operation: admission.Create, resource: "pods/binding", object: pod(t, provePlugin)},
		{operation: admission.Connect, resource: "pods/exec", object: pod(t, provePlugin)},
		{operation: admission.Connect, resource: "pods/proxy", object: pod(t, provePlugin)},
	} {
		require.Contains(t, evaluate(t, r), "gpu-validator creates and deletes pods, it does not change them, and reaches into none", r.resource)
	}
}

// hostile are pods that a stolen token might request, and the texts of the refusals.
func hostile() map[string]struct {
	change func(*corev1.Pod)
	want   string
} {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Path: "/", Port: intstr.FromInt32(80)}}}
	hook := &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: probe.HTTPGet}}
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = maps.Clone(p.Annotations)
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations[key] = value
		}
	}
	security := func(change func(*corev1.SecurityContext)) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { change(c.SecurityContext) })
	}
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	const (
		named     = "gpu-validator does not give its pods these fields; if Kubernetes or a webhook adds them, exclude this namespace there: "
		marked    = "a pod of gpu-validator has the labels app and app.kubernetes.io/name"
		account   = "a pod of gpu-validator has no service account but default"
		runs      = "a pod of gpu-validator is of the priority class gpuready-validator-workload"
		nobody    = "a pod of gpu-validator is nobody's, without capabilities"
		program   = "a pod of gpu-validator has one container, vectoradd"
		resources = "requests one GPU, nvidia-driver-validation none"
	)
	return map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"the kubelet calls anything, by a liveness probe":  {container(func(c *corev1.Container) { c.LivenessProbe = probe }), named + "spec.containers[0].livenessProbe"},
		"the kubelet calls anything, by a readiness probe": {container(func(c *corev1.Container) { c.ReadinessProbe = probe }), named + "spec.containers[0].readinessProbe"},
		"the kubelet calls anything, by a startup probe":   {container(func(c *corev1.Container) { c.StartupProbe = probe }), named + "spec.containers[0].startupProbe"},
		"the kubelet calls anything, by a hook":            {container(func(c *corev1.Container) { c.Lifecycle = hook }), named + "spec.containers[0].lifecycle"},
		"a label by which a Service finds it":              {func(p *corev1.Pod) { p.Labels["k8s-app"] = "kube-dns" }, named + "metadata.labels[k8s-app]"},
		"another value of a label":                         {func(p *corev1.Pod) { p.Labels["app"] = "nvidia-operator-validator" }, marked},
		"a second owner that is a controller":              {func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, controller()) }, "has one owner"},
		"its owner as a controller":                        {func(p *corev1.Pod) { p.OwnerReferences[0].Controller = new(true) }, marked},
		"any CDI device, by an annotation":                 {annotated("cdi.k8s.io/all", "vendor.example/agent=root"), named + "metadata.annotations[cdi.k8s.io/all]"},
		"no AppArmor, by an annotation":                    {annotated("container.apparmor.security.beta.kubernetes.io/vectoradd", "unconfined"), named + "metadata.annotations[container.apparmor"},
		"another SCC":                                      {annotated("openshift.io/required-scc", "privileged"), named},
		"any pull secret":                                  {func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}} }, "pull secrets"},
		"any RuntimeClass":                                 {func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata") }, "RuntimeClass"},
		"another image":                                    {container(func(c *corev1.Container) { c.Image = "evil.example/miner:v1" }), "the image of a pod of gpu-validator"},
		"another program":                                  {container(func(c *corev1.Container) { c.Command = []string{"/bin/sh", "-c", "true"} }), program},
		"another subcommand":                               {container(func(c *corev1.Container) { c.Command[1] = "daemon" }), program},
		"a flag more":                                      {container(func(c *corev1.Container) { c.Command = append(c.Command, "--help") }), program},
		"arguments":                                        {container(func(c *corev1.Container) { c.Args = []string{"x"} }), named + "spec.containers[0].args"},
		"a variable": {container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
		}), program},
		"a high priority":        {func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, runs},
		"no priority":            {func(p *corev1.Pod) { p.Spec.PriorityClassName = "" }, runs},
		"preemption":             {func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptLowerPriority) }, runs},
		"for ever":               {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }, runs},
		"again and again":        {func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }, runs},
		"a scheduler of its own": {func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }, runs},
		"the node's DNS":         {func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, runs},
		"a service account":      {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gpu-toolkit" }, account},
		"a token":                {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, account},
		"host network":           {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, named + "spec.hostNetwork"},
		"host PIDs":              {func(p *corev1.Pod) { p.Spec.HostPID = true }, named + "spec.hostPID"},
		"host IPC":               {func(p *corev1.Pod) { p.Spec.HostIPC = true }, named + "spec.hostIPC"},
		"a user namespace":       {func(p *corev1.Pod) { p.Spec.HostUsers = new(false) }, named + "spec.hostUsers"},
		"a host path":            {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), named + "spec.volumes"},
		"a Secret":               {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), named + "spec.volumes"},
		"an empty folder":        {volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), named + "spec.volumes"},
		"a port":                 {container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1}} }), named + "spec.containers[0].ports"},
		"Secrets by name":        {container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}} }), named + "spec.containers[0].envFrom"},
		"a second container":     {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }, program},
		"an init container":      {func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.Containers }, named + "spec.initContainers"},
		"a claim": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		}, named + "spec.resourceClaims"},
		"a claim's device":   {container(func(c *corev1.Container) { c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}} }), named + "spec.containers[0].resources.claims"},
		"all of a node":      {container(func(c *corev1.Container) { c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64") }), resources},
		"devices of others":  {container(func(c *corev1.Container) { c.Resources.Limits["example.com/fpga"] = resource.MustParse("1") }), resources},
		"one GPU more":       {container(func(c *corev1.Container) { c.Resources.Limits["nvidia.com/gpu.shared"] = resource.MustParse("1") }), resources},
		"privileged":         {security(func(s *corev1.SecurityContext) { s.Privileged = new(true) }), named + "spec.containers[0].securityContext.privileged"},
		"escalation":         {security(func(s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = nil }), nobody},
		"capabilities kept":  {security(func(s *corev1.SecurityContext) { s.Capabilities = nil }), nobody},
		"a capability":       {security(func(s *corev1.SecurityContext) { s.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} }), nobody},
		"SELinux type":       {security(func(s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }), named},
		"seccomp":            {security(func(s *corev1.SecurityContext) { s.SeccompProfile = &corev1.SeccompProfile{Type: "Unconfined"} }), named},
		"AppArmor":           {security(func(s *corev1.SecurityContext) { s.AppArmorProfile = &corev1.AppArmorProfile{Type: "Unconfined"} }), named},
		"/proc":              {security(func(s *corev1.SecurityContext) { s.ProcMount = new(corev1.UnmaskedProcMount) }), named},
		"root":               {security(func(s *corev1.SecurityContext) { s.RunAsUser = new(int64(0)) }), named},
		"root's group":       {func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsGroup = new(int64(0)) }, nobody},
		"a group of others":  {func(p *corev1.Pod) { p.Spec.SecurityContext.SupplementalGroups = []int64{6} }, named},
		"no context":         {container(func(c *corev1.Container) { c.SecurityContext = nil }), nobody},
		"no context of pod":  {func(p *corev1.Pod) { p.Spec.SecurityContext = nil }, nobody},
		"SELinux of the pod": {func(p *corev1.Pod) { p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }, named},
		"sysctls":            {func(p *corev1.Pod) { p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "a", Value: "b"}} }, named},
		"a profile's file":   {func(p *corev1.Pod) { p.Spec.SecurityContext.SeccompProfile.LocalhostProfile = new("x") }, nobody},
	}
}

func TestHostilePodsAreRefused(t *testing.T) {
	for _, role := range []string{proveDriver, provePlugin} {
		for name, c := range hostile() {
			t.Run(role+"/"+name, func(t *testing.T) { require.Contains(t, evaluate(t, created(pod(t, role, c.change))), c.want) })
		}
	}
	gpu := container(func(c *corev1.Container) { c.Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1") })
	require.NotEmpty(t, evaluate(t, created(pod(t, proveDriver, gpu))), "who is given all GPUs requests none")
	require.NotEmpty(t, evaluate(t, created(pod(t, provePlugin, func(p *corev1.Pod) { p.Annotations = map[string]string{"gpuready.io/management": "true"} }))))
	require.NotEmpty(t, evaluate(t, created(pod(t, proveDriver, func(p *corev1.Pod) { p.Annotations["gpuready.io/management"] = "false" }))))
	require.NotEmpty(t, evaluate(t, created(pod(t, provePlugin, container(func(c *corev1.Container) {
		c.Resources.Limits["nvidia.com/gpu"], c.Resources.Requests["nvidia.com/gpu"] = resource.MustParse("8"), resource.MustParse("8")
	})))))
}

func TestPodSizeIsBounded(t *testing.T) {
	const bounded = "a pod of gpu-validator has the labels app and app.kubernetes.io/name, which say what it is"
	for name, change := range map[string]func(*corev1.Pod){
		"tolerations": func(p *corev1.Pod) {
			for i := range 65 {
				p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: fmt.Sprint("k", i), Operator: "Exists"})
			}
		},
		"a node selector": func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{}
			for i := range 65 {
				p.Spec.NodeSelector[fmt.Sprint("k", i)] = "x"
			}
		},
		"what a LimitRanger did": func(p *corev1.Pod) {
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations["kubernetes.io/limit-ranger"] = strings.Repeat("x", 1025)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, role := range []string{proveDriver, provePlugin} {
				require.Contains(t, evaluate(t, created(pod(t, role, change))), bounded)
			}
		})
	}
}

func TestNodeLabelsDoNotAccumulate(t *testing.T) {
	fill := func(n *corev1.Node, labels int) {
		for i := range labels {
			n.Labels[fmt.Sprintf("nvidia.com/gpu.x%d", i)] = ""
		}
	}
	more := changed("nodes", "n1", func(n *corev1.Node) { fill(n, 520) })
	fill(more.old.(*corev1.Node), 400)
	require.Contains(t, evaluate(t, more), "gpu-validator may bring a Node to 512 labels of GPUs")
	fewer := changed("nodes", "n1", func(n *corev1.Node) { fill(n, 520) })
	fill(fewer.old.(*corev1.Node), 600)
	require.Empty(t, evaluate(t, fewer), "a Node that has more can lose them")
}
