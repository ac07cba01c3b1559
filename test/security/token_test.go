package security

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// operatorNamespace is the namespace that mig-manager.yaml installs into.
const operatorNamespace = "gpuready-system"

var (
	dryRun       = []string{metav1.DryRunAll}
	dryRunCreate = metav1.CreateOptions{DryRun: dryRun}
	dryRunPatch  = metav1.PatchOptions{DryRun: dryRun}
	dryRunDelete = metav1.DeleteOptions{DryRun: dryRun}
)

// TestStolenTokens misuses the agents' tokens on a real API server that has the manifests' roles and
// policies. There are no nodes: Nodes and pods are only objects.
func TestStolenTokens(t *testing.T) {
	s := e2e.Up(t, cluster.Config{Bare: true, Controllers: "*,-daemonset-controller,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"})
	b := &plane{s}
	b.Kubectl(t, "create", "namespace", operatorNamespace)
	b.Kubectl(t, "-n", operatorNamespace, "create", "serviceaccount", "gpu-mig-manager")
	b.Apply(t, "gpuready.yaml", "mig-manager.yaml")
	for _, name := range []string{"n1", "n2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.deploy.dcgm": "false", "nvidia.com/gpu.deploy.device-plugin": "true"}}}
		_, err := b.World.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	// All of the DaemonSet's pods are of its version.
	sets := b.World.Client.AppsV1().DaemonSets(e2e.Namespace)
	set, err := sets.Get(t.Context(), "nvidia-operator-validator", metav1.GetOptions{})
	require.NoError(t, err)
	set.Status.ObservedGeneration, set.Status.DesiredNumberScheduled, set.Status.UpdatedNumberScheduled = set.Generation, 1, 1
	_, err = sets.UpdateStatus(t.Context(), set, metav1.UpdateOptions{})
	require.NoError(t, err)

	validator := b.agent(t, e2e.Namespace, "gpu-validator")
	mig := b.agent(t, operatorNamespace, "gpu-mig-manager")
	t.Run("the validator's pods are what the validator makes", func(t *testing.T) { b.podsAreListed(t, validator) })
	t.Run("the validator's token is for its own node", func(t *testing.T) { b.validatorsNode(t, validator) })
	t.Run("the MIG manager's token is for its own node", func(t *testing.T) { b.migManagersNode(t, mig) })
	t.Run("cleanup leaves people's labels", b.cleanupLeavesLabels)
}

// plane is a cluster without nodes.
type plane struct{ *e2e.Suite }

// await waits until objection returns nil: policies take effect some moments after they are applied, and
// nothing signals when.
func await(t *testing.T, what string, objection func() error) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, objection()) }, patience, 50*time.Millisecond, what)
}

// stolen is an agent's token, and the pod for which it was issued.
type stolen struct {
	kubernetes.Interface
	pod *corev1.Pod
}

// agent creates a pod of an account on n1, and issues its token.
func (b *plane) agent(t *testing.T, namespace, account string) stolen {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account + "-x", Namespace: namespace},
		Spec:       corev1.PodSpec{NodeName: "n1", ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	pod, err := b.World.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	token, err := b.World.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(b.World.Config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return stolen{client, pod}
}

// made returns a pod as the validator creates it, for the validator whose token was stolen.
func (s stolen) made(t *testing.T, role string) *corev1.Pod {
	t.Helper()
	data, err := os.ReadFile("../../validator/workload/testdata/" + role + ".yaml")
	require.NoError(t, err)
	p := &corev1.Pod{}
	require.NoError(t, yaml.UnmarshalStrict(data, p))
	p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = s.pod.Name, s.pod.UID
	p.Spec.Containers[0].Image = "gpuready/validator:" + e2e.Version() // the file has that of no release
	return p
}

// admitted requests a pod with a dry run, and returns the result.
func (s stolen) admitted(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return s.CoreV1().Pods(p.Namespace).Create(ctx, p, dryRunCreate)
}

// refused requires that one of our policies refuses a request that RBAC alone would allow.
func refused(t *testing.T, err error, what string) {
	t.Helper()
	require.Truef(t, err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'gpuready-"), "%s: %v", what, err)
}

const (
	proveDriver = "nvidia-driver-validation"
	provePlugin = "nvidia-device-plugin-validation"
)

// podsAreListed tries each way in which a pod could do more than prove.
func (b *plane) podsAreListed(t *testing.T, s stolen) {
	await(t, "the policies are in force, and the pods that the validator makes are admitted", func() error {
		evil := s.made(t, provePlugin)
		evil.Spec.Containers[0].Image = "evil.example/miner:v1"
		if _, err := s.admitted(t.Context(), evil); err == nil || !strings.Contains(err.Error(), "VALIDATOR_IMAGE") {
			return fmt.Errorf("another image: %w", errors.Join(err, errors.New("it has to be refused")))
		}
		for _, role := range []string{proveDriver, provePlugin} {
			if _, err := s.admitted(t.Context(), s.made(t, role)); err != nil {
				return err
			}
		}
		return nil
	})

	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	call := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Path: "/latest/meta-data", Port: intstr.FromInt32(80)}}
	for what, change := range map[string]func(*corev1.Pod){
		"httpGet.host in a liveness probe":  container(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{ProbeHandler: call} }),
		"httpGet.host in a readiness probe": container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{ProbeHandler: call} }),
		"httpGet.host in a startup probe":   container(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{ProbeHandler: call} }),
		"httpGet.host in a postStart hook": container(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: call.HTTPGet}}
		}),
		"httpGet.host in a preStop hook": container(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: call.HTTPGet}}
		}),
		"a label":                     func(p *corev1.Pod) { p.Labels["k8s-app"] = "kube-dns" },
		"the label of an agent":       func(p *corev1.Pod) { p.Labels["app"] = "nvidia-operator-validator" },
		"a second, controlling owner": func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, controller()) },
		"an owner that controls":      func(p *corev1.Pod) { p.OwnerReferences[0].Controller = new(true) },
		"another owner":               func(p *corev1.Pod) { p.OwnerReferences[0].UID = "00000000-0000-4000-8000-000000000001" },
		"cdi.k8s.io/*": func(p *corev1.Pod) {
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations["cdi.k8s.io/all"] = "vendor.example/agent=root"
		},
		"a pull secret":   func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}} },
		"another image":   container(func(c *corev1.Container) { c.Image = "evil.example/miner:v1" }),
		"another tag":     container(func(c *corev1.Container) { c.Image = "gpuready/validator:v0.0.9" }),
		"another program": container(func(c *corev1.Container) { c.Command = []string{"/bin/sh"} }),
		"a variable": container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
		}),
		"a sidecar": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b", Image: "b"})
		},
		"the host's network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"another node":       func(p *corev1.Pod) { p.Spec.NodeName = "n2" },
		"a host path": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		},
		"an account":           func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gpu-toolkit" },
		"a name of another's":  func(p *corev1.Pod) { p.Name = provePlugin + "-n2" },
		"a host's port":        container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}} }),
		"privileges":           container(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)} }),
		"all of a node's cpus": container(func(c *corev1.Container) { c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64") }),
	} {
		for _, role := range []string{proveDriver, provePlugin} {
			p := s.made(t, role)
			change(p)
			_, err := s.admitted(t.Context(), p)
			refused(t, err, role+": "+what)
		}
	}
	for _, role := range []string{proveDriver, provePlugin} {
		b.everyFieldIsListed(t, s, role)
	}

	pods := s.CoreV1().Pods(e2e.Namespace)
	refused(t, pods.Delete(t.Context(), s.pod.Name, dryRunDelete), "an agent's pod deleted")
	_, err := pods.Patch(t.Context(), s.pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), dryRunPatch)
	require.True(t, apierrors.IsForbidden(err), "a pod changed: %v", err)
	for _, sub := range []string{"ephemeralcontainers", "status", "resize"} {
		_, err := pods.Patch(t.Context(), s.pod.Name, types.MergePatchType, []byte(`{}`), dryRunPatch, sub)
		require.True(t, apierrors.IsForbidden(err), "pods/%s: %v", sub, err)
	}
	err = s.CoreV1().RESTClient().Post().Namespace(e2e.Namespace).Resource("pods").Name(s.pod.Name).SubResource("exec").Do(t.Context()).Error()
	require.True(t, apierrors.IsForbidden(err), "pods/exec: %v", err)
}

func controller() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "theirs", UID: "00000000-0000-4000-8000-000000000001", Controller: new(true)}
}

// harmless are additional fields that the validator's pods may have.
var harmless = map[string]bool{"NodeSelector": true, "ResizePolicy": true}

// everyFieldIsListed sets each field of Kubernetes' types that the validator does not set, one at a time.
// An admitted pod must equal the pod without that field.
func (b *plane) everyFieldIsListed(t *testing.T, s stolen, role string) {
	t.Helper()
	filler := randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).MaxDepth(8).Funcs(
		func(v *string, _ randfill.Continue) { *v = "walk" },
		func(v *resource.Quantity, _ randfill.Continue) { *v = resource.MustParse("1") },
		func(v *metav1.Time, _ randfill.Continue) { *v = metav1.Unix(1, 0) },
		func(v *metav1.FieldsV1, _ randfill.Continue) { *v = *metav1.NewFieldsV1("{}") },
		func(v *intstr.IntOrString, _ randfill.Continue) { *v = intstr.FromInt32(1) },
	)
	plain := func(p *corev1.Pod) corev1.Pod {
		p.UID, p.CreationTimestamp, p.ManagedFields, p.Status = "", metav1.Time{}, nil, corev1.PodStatus{}
		return *p
	}
	want, err := s.admitted(t.Context(), s.made(t, role))
	require.NoError(t, err)
	parts := func(p *corev1.Pod) []reflect.Value {
		c := &p.Spec.Containers[0]
		return []reflect.Value{
			reflect.ValueOf(&p.ObjectMeta).Elem(), reflect.ValueOf(&p.Spec).Elem(), reflect.ValueOf(p.Spec.SecurityContext).Elem(),
			reflect.ValueOf(p.Spec.Affinity).Elem(), reflect.ValueOf(p.Spec.Affinity.NodeAffinity).Elem(),
			reflect.ValueOf(c).Elem(), reflect.ValueOf(c.SecurityContext).Elem(), reflect.ValueOf(&c.Resources).Elem(),
		}
	}
	set := 0
	for i, part := range parts(s.made(t, role)) {
		for field := range part.NumField() {
			name := part.Type().Field(field).Name
			if !part.Field(field).IsZero() || harmless[name] {
				continue
			}
			p := s.made(t, role)
			filler.Fill(parts(p)[i].Field(field).Addr().Interface())
			set++
			if got, err := s.admitted(t.Context(), p); err == nil {
				require.Equalf(t, plain(want.DeepCopy()), plain(got), "%s: %s.%s", role, part.Type(), name)
			}
		}
	}
	require.Greater(t, set, 70, "fields")
}

// validatorsDevices reports devices with the validator's token: on its own Node, where the kubelet has
// reported none.
func (b *plane) validatorsDevices(t *testing.T, patch func(node, body string, sub ...string) error) {
	offer := func(devices string) string {
		return `{"status":{"capacity":{"nvidia.com/gpu":` + devices + `},"allocatable":{"nvidia.com/gpu":` + devices + `}}}`
	}
	require.NoError(t, patch("n1", offer(`"8"`), "status"))
	refused(t, patch("n2", offer(`"8"`), "status"), "another Node's devices")
	_, err := b.World.Client.CoreV1().Nodes().Patch(t.Context(), "n1", types.StrategicMergePatchType,
		[]byte(`{"status":{"capacity":{"nvidia.com/gpu":"8","cpu":"2"},"allocatable":{"nvidia.com/gpu":"8","cpu":"2"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	for _, devices := range []string{`"99"`, `"7"`, `"0"`, `null`} {
		refused(t, patch("n1", offer(devices), "status"), "devices that the kubelet has reported: "+devices)
	}
	for _, other := range []string{`"cpu":"1000"`, `"example.com/gpu":"8"`, `"nvidia.com/other":"100000"`} {
		refused(t, patch("n1", `{"status":{"allocatable":{`+other+`}}}`, "status"), other)
	}
}

// validatorsNode writes Nodes and Events with the validator's token.
func (b *plane) validatorsNode(t *testing.T, s stolen) {
	patch := func(node, body string, sub ...string) error {
		_, err := s.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(body), dryRunPatch, sub...)
		return err
	}
	await(t, "the policies of Nodes and Events are in force", func() error {
		if patch("n2", `{"metadata":{"labels":{"nvidia.com/gpu.product":"x"}}}`) == nil {
			return errors.New("another Node may be patched")
		}
		_, err := s.CoreV1().Events("default").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}}, dryRunCreate)
		if err == nil || !strings.Contains(err.Error(), "own-events") {
			return fmt.Errorf("any Event may be made: %w", errors.Join(err))
		}
		return nil
	})
	const condition = `{"status":{"conditions":[{"type":"GPUReady","status":"True","reason":"Proven","message":%q}]}}`
	require.NoError(t, patch("n1", fmt.Sprintf(condition, "well"), "status"))
	refused(t, patch("n2", fmt.Sprintf(condition, "well"), "status"), "another Node's condition")
	refused(t, patch("n1", fmt.Sprintf(condition, strings.Repeat("x", 2000)), "status"), "a long message")
	refused(t, patch("n1", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status"), "the kubelet's condition")
	b.validatorsDevices(t, patch)
	require.NoError(t, patch("n1", `{"metadata":{"labels":{"nvidia.com/gpu.product":"H100"}}}`))
	for what, body := range map[string]string{
		"a label":      `{"metadata":{"labels":{"pool":"secret"}}}`,
		"a choice":     `{"metadata":{"labels":{"nvidia.com/mig.config":"all-1g.10gb"}}}`,
		"an operand":   `{"metadata":{"labels":{"nvidia.com/gpu.deploy.driver":"false"}}}`,
		"a record":     `{"metadata":{"annotations":{"gpuready.io/labels":"present"}}}`,
		"a cordon":     `{"spec":{"unschedulable":true}}`,
		"a taint":      `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`,
		"a long taint": `{"spec":{"taints":[{"key":"nvidia.com/gpu-not-ready","value":"x","effect":"NoSchedule"}]}}`,
		"a finalizer":  `{"metadata":{"finalizers":["a/b"]}}`,
	} {
		refused(t, patch("n1", body), what)
	}

	event := func(change func(*corev1.Event)) error {
		e := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "n1.0123456789abcdef"},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n1", UID: "n1"}, Type: "Warning", Reason: "XID", Message: "GPU 0: XID 79",
			FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
			Source: corev1.EventSource{Component: "gpu-validator", Host: "n1"}, ReportingController: "gpu-validator", ReportingInstance: "n1",
		}
		change(e)
		_, err := s.CoreV1().Events("default").Create(t.Context(), e, dryRunCreate)
		return err
	}
	require.NoError(t, event(func(*corev1.Event) {}))
	for what, change := range map[string]func(*corev1.Event){
		"of another Node":       func(e *corev1.Event) { e.InvolvedObject.Name = "n2" },
		"as the kubelet":        func(e *corev1.Event) { e.Source.Component = "kubelet" },
		"as another controller": func(e *corev1.Event) { e.ReportingController = "kubelet" },
		"of a megabyte":         func(e *corev1.Event) { e.Message = strings.Repeat("x", 1<<20) },
		"with a label":          func(e *corev1.Event) { e.Labels = map[string]string{"a": "b"} },
		"with an annotation":    func(e *corev1.Event) { e.Annotations = map[string]string{"a": "b"} },
	} {
		refused(t, event(change), "an Event "+what)
	}
	_, err := s.CoreV1().Secrets(e2e.Namespace).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

// migManagersNode writes Nodes and deletes pods with the MIG manager's token.
func (b *plane) migManagersNode(t *testing.T, s stolen) {
	label := func(node, name, value string) error {
		body := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, name, value)
		_, err := s.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, body, dryRunPatch)
		return err
	}
	await(t, "the MIG manager's policies are in force", func() error {
		if label("n2", "nvidia.com/mig.config.state", `"success"`) == nil {
			return errors.New("another Node may be patched")
		}
		return nil
	})
	for _, state := range []string{"pending", "rebooting", "success", "failed"} {
		require.NoError(t, label("n1", "nvidia.com/mig.config.state", `"`+state+`"`))
	}
	require.NoError(t, label("n1", "nvidia.com/gpu.deploy.device-plugin", `"paused-for-mig-change"`))
	require.NoError(t, label("n1", "nvidia.com/gpu.deploy.nvsm", `"paused-for-mig-change"`))
	require.NoError(t, label("n1", "nvidia.com/gpu.deploy.dcgm", `"false"`), "as it is")
	for _, c := range [][3]string{
		{"n2", "nvidia.com/mig.config.state", `"success"`}, {"n2", "nvidia.com/gpu.deploy.device-plugin", `"paused-for-mig-change"`},
		{"n1", "nvidia.com/mig.config.state", `"x"`}, {"n1", "nvidia.com/mig.config", `"all-1g.10gb"`}, {"n1", "nvidia.com/gpu.deploy.dcgm", `"true"`},
		{"n1", "nvidia.com/gpu.deploy.driver", `"true"`}, {"n1", "nvidia.com/gpu.deploy.device-plugin", `"false"`}, {"n1", "nvidia.com/gpu.deploy.device-plugin", "null"},
		{"n1", "node-role.kubernetes.io/control-plane", `""`}, {"n1", "pool", `"secret"`},
	} {
		refused(t, label(c[0], c[1], c[2]), strings.Join(c[:], " "))
	}
	for what, body := range map[string]string{
		"a cordon": `{"spec":{"unschedulable":true}}`, "a taint": `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`,
		"an annotation": `{"metadata":{"annotations":{"gpuready.io/labels":"present"}}}`, "a finalizer": `{"metadata":{"finalizers":["a/b"]}}`,
	} {
		_, err := s.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, []byte(body), dryRunPatch)
		refused(t, err, what)
	}
	require.True(t, apierrors.IsForbidden(s.CoreV1().Nodes().Delete(t.Context(), "n2", dryRunDelete)))

	pods := s.CoreV1().Pods(operatorNamespace)
	for _, node := range []string{"n1", "n2"} {
		_, err := b.World.Client.CoreV1().Pods(operatorNamespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "validator-" + node, Labels: map[string]string{"app": "nvidia-operator-validator"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, pods.Delete(t.Context(), "validator-n1", dryRunDelete))
	refused(t, pods.Delete(t.Context(), "validator-n2", dryRunDelete), "another node's validator")
	refused(t, pods.Delete(t.Context(), s.pod.Name, dryRunDelete), "another agent")
	require.Error(t, pods.DeleteCollection(t.Context(), dryRunDelete, metav1.ListOptions{}), "all at once")
	_, err := pods.Create(t.Context(), s.pod, dryRunCreate)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

// cleanupLeavesLabels runs gpu-operator cleanup on a Node whose annotations name a person's labels.
func (b *plane) cleanupLeavesLabels(t *testing.T) {
	people := map[string]string{
		"nvidia.com/pool": "secret", "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/gpu.workload.config": "container",
		"nvidia.com/gpu.product": "mine", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.mig-manager": "true",
	}
	args := []string{"label", "node", "n2", "--overwrite"}
	for key, value := range people {
		args = append(args, key+"="+value)
	}
	b.Kubectl(t, args...)
	ours := []byte(`{"metadata":{"labels":{"nvidia.com/gpu.count":"8"},"annotations":{
		"gpuready.io/feature-labels":"pool,mig.config,gpu.workload.config,gpu.product,gpu.count","gpuready.io/labels":"present,deploy.mig-manager"}}}`)
	_, err := b.World.Client.CoreV1().Nodes().Patch(t.Context(), "n2", types.MergePatchType, ours, metav1.PatchOptions{FieldManager: "gpu-validator"})
	require.NoError(t, err)
	program := filepath.Join(os.Getenv("GPUREADY_E2E"), "gpu-operator")
	out, err := exec.CommandContext(t.Context(), program, "cleanup", "--kubeconfig", b.Kubeconfig, "--namespace", e2e.Namespace).CombinedOutput()
	require.NoError(t, err, string(out))
	node, err := b.World.Client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
	require.NoError(t, err)
	left := maps.Clone(node.Labels)
	maps.DeleteFunc(left, func(key, _ string) bool { _, is := people[key]; return !is })
	require.Equal(t, people, left, string(out))
	require.NotContains(t, node.Labels, "nvidia.com/gpu.count", "the validator's own goes")
}
