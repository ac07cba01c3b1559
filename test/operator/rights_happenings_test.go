package operator

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// policyOfRights is a policy of the product, with a pull secret for its driver's image.
const policyOfRights = `
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: gpu-cluster-policy
  labels: { app.kubernetes.io/part-of: gpuready }
spec:
  operator: { runtimeClass: gpu }
  driver:
    repository: registry.example/nvidia
    image: driver
    version: 580.95.05
    upgradePolicy: { autoUpgrade: true, maxParallelUpgrades: 0, maxUnavailable: 100%, podDeletion: { force: true } }
  draDriver: { enabled: true }
  dcgm: { enabled: true, repository: nvcr.io/nvidia/cloud-native, image: dcgm, version: 4.2.3-1-ubuntu22.04 }
  dcgmExporter: { enabled: true, repository: nvcr.io/nvidia/k8s, image: dcgm-exporter, version: 4.4.1-4.5.2-distroless, serviceMonitor: { enabled: true } }
`

// furnish creates the objects with which every step begins: a policy, a node, a pull secret.
func (b *bench) furnish(t *testing.T) {
	t.Helper()
	var p unstructured.Unstructured
	require.NoError(t, yaml.Unmarshal([]byte(policyOfRights), &p.Object))
	b.create(t, &p, gpuNode("n1"), &corev1.Secret{
		ObjectMeta: named(operands, "pull"), Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`)},
	})
}

// create creates the objects that do not exist yet, and retries while something they depend on
// is being created.
func (b *bench) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		b.waitNoError(t, o.GetName()+" is made", func() error {
			err := b.Create(t.Context(), o)
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
}

// works returns an error until the operator reports that it works.
func (b *bench) works() error {
	if !strings.Contains(b.printed(), "msg=working") {
		return errors.New("it does not say that it works")
	}
	return nil
}

// next returns a new number each time.
func (b *bench) next() int { b.version++; return b.version }

// change changes the policy's spec.
func (b *bench) change(t *testing.T, spec string, args ...any) {
	t.Helper()
	b.merge(t, thePolicy(), `{"spec":`+fmt.Sprintf(spec, args...)+`}`)
}

func thePolicy() *unstructured.Unstructured {
	p := &unstructured.Unstructured{}
	p.SetAPIVersion("nvidia.com/v1")
	p.SetKind("ClusterPolicy")
	p.SetName(policy)
	return p
}

// observed returns an error until the status belongs to the current spec.
func (b *bench) observed(t *testing.T) error {
	p := thePolicy()
	require.NoError(t, b.Get(t.Context(), client.ObjectKey{Name: policy}, p))
	if seen, _, _ := unstructured.NestedInt64(p.Object, "status", "observedGeneration"); seen != p.GetGeneration() {
		return fmt.Errorf("the status is of generation %d, the policy of %d", seen, p.GetGeneration())
	}
	return nil
}

// finder reads an object; nil means that it does not exist.
type finder[P client.Object] func(t *testing.T, b *bench, namespace, name string) P

// target returns a finder for an object that the operator creates.
func target[T any, P interface {
	*T
	client.Object
}](where, name string) P {
	var o T
	P(&o).SetName(name)
	P(&o).SetNamespace(roles[where].namespace)
	return &o
}

// again returns a step in which somebody deletes an object of the operator's.
func again[T any, P interface {
	*T
	client.Object
}](resource, where, name string, find finder[P]) step {
	var before types.UID
	return step{
		name:  name + " is deleted by hand",
		needs: []string{where + ": create " + resource},
		happens: func(t *testing.T, b *bench) {
			o := find(t, b, roles[where].namespace, name)
			require.NotNil(t, o)
			before = o.GetUID()
			require.NoError(t, b.Delete(t.Context(), o))
		},
		done: func(t *testing.T, b *bench) error {
			if o := find(t, b, roles[where].namespace, name); o == nil || o.GetUID() == before {
				return errors.New("it has not been made anew")
			}
			return nil
		},
	}
}

// edited returns a step in which somebody changes such an object.
func edited[T any, P interface {
	*T
	client.Object
}](resource, where, name string, find finder[P]) step {
	const digest = "gpuready.io/digest"
	return step{
		name:  name + " is changed by hand",
		needs: []string{where + ": patch " + resource},
		happens: func(t *testing.T, b *bench) {
			b.merge(t, target[T, P](where, name), `{"metadata":{"annotations":{"`+digest+`":"edited"}}}`)
		},
		done: func(t *testing.T, b *bench) error {
			if o := find(t, b, roles[where].namespace, name); o == nil || o.GetAnnotations()[digest] == "edited" {
				return errors.New("it is as somebody has changed it")
			}
			return nil
		},
	}
}

// unwanted returns a step in which the policy no longer wants such an object.
func unwanted[T any, P interface {
	*T
	client.Object
}](resource, where, name string, find finder[P], without, with string) step {
	return step{
		name:    name + " is not wanted any more",
		needs:   []string{where + ": delete " + resource},
		happens: func(t *testing.T, b *bench) { b.change(t, "%s", without) },
		done: func(t *testing.T, b *bench) error {
			if find(t, b, roles[where].namespace, name) != nil {
				return errors.New("it is there")
			}
			return nil
		},
		undo: func(t *testing.T, b *bench) {
			b.change(t, "%s", with)
			b.waitNoError(t, name+" is there again", func() error {
				if find(t, b, roles[where].namespace, name) == nil {
					return errors.New("it is not")
				}
				return nil
			})
		},
	}
}

// outdated creates a node with an old driver, and pods with a GPU on it.
func (b *bench) outdated(t *testing.T, jobs ...string) {
	t.Helper()
	b.oldDriver(t, b.driverNode(t), jobs...)
}

// driverNode creates the node n2 and returns the DaemonSet of its driver.
func (b *bench) driverNode(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	b.create(t, gpuNode("n2"))
	var sets appsv1.DaemonSetList
	b.waitNoError(t, "all nodes have the same driver", func() error {
		if err := b.List(t.Context(), &sets, client.InNamespace(operands), client.MatchingLabels{"gpuready.io/state": "driver"}); err != nil {
			return err
		}
		if len(sets.Items) != 1 {
			return fmt.Errorf("there are %d DaemonSets of drivers", len(sets.Items))
		}
		return nil
	})
	b.waitNoError(t, "the node is given to the driver's DaemonSet", func() error {
		if n := object[corev1.Node](t, b, "", "n2"); n.Labels["gpuready.io/driver"] == "" {
			return errors.New("it is not")
		}
		return nil
	})
	return &sets.Items[0]
}

// oldDriver creates a pod of an older driver on n2, and pods that use its GPUs.
func (b *bench) oldDriver(t *testing.T, set *appsv1.DaemonSet, jobs ...string) {
	t.Helper()
	for _, name := range jobs {
		job := boundPod("default", name, map[string]string{"app": "job"})
		job.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		b.create(t, job)
	}
	old := boundPod(operands, "old-driver", map[string]string{
		"app": "nvidia-driver-daemonset", "app.kubernetes.io/part-of": "gpuready", "gpuready.io/state": "driver", "gpuready.io/driver-digest": "old",
	})
	old.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	b.create(t, old)
}

// boundPod returns a pod that is bound to n2 and that no kubelet runs.
func boundPod(namespace, name string, labels map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named(namespace, name)}
	p.Labels = labels
	p.Spec = corev1.PodSpec{NodeName: "n2", TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "main", Image: "none"}}}
	return p
}

// moved returns an error until the pods with a GPU and the old driver's pod are gone.
func (b *bench) moved(t *testing.T) error {
	for _, key := range []client.ObjectKey{{Namespace: "default", Name: "job-1"}, {Namespace: operands, Name: "old-driver"}} {
		if object[corev1.Pod](t, b, key.Namespace, key.Name) != nil {
			return fmt.Errorf("%s is there", key)
		}
	}
	return nil
}

// removeOutdated removes the objects that outdated created.
func (b *bench) removeOutdated(t *testing.T) {
	t.Helper()
	b.remove(t, gpuNode("n2"), boundPod("default", "job-1", nil), boundPod("default", "job-2", nil), boundPod(operands, "old-driver", nil))
}

// budget returns a disruption budget that protects all pods with a GPU.
func budget() *policyv1.PodDisruptionBudget {
	none := intstr.FromInt32(0)
	return &policyv1.PodDisruptionBudget{ObjectMeta: named("default", "jobs"), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "job"}},
	}}
}

// ends returns an error until a command has succeeded; a failed one is run again.
func (b *bench) ends(t *testing.T, account string, args ...string) error {
	code, ended := b.program.exited()
	if !ended {
		return errors.New("it runs")
	}
	if code != 0 {
		text := b.printed()
		b.start(t, account, nil, args...)
		return fmt.Errorf("it ended with %d: %s", code, text)
	}
	return nil
}

var cleanup = []string{"cleanup", "--namespace", namespace, "--operand-namespace", operands, "--timeout=60s"}

func (b *bench) clean(t *testing.T) { b.start(t, "gpuready-operator-cleanup", nil, cleanup...) }

// leave puts the cluster into the state after an operator was deleted before its policy.
func (b *bench) leave(t *testing.T, finalizers ...string) {
	t.Helper()
	b.stop()
	b.furnish(t)
	meta := func(namespace string) metav1.ObjectMeta {
		m := named(namespace, "left")
		m.Labels = map[string]string{"app.kubernetes.io/part-of": "gpuready", "app.kubernetes.io/managed-by": "gpu-operator", "app": "left"}
		return m
	}
	set := &appsv1.DaemonSet{ObjectMeta: meta(operands)}
	set.Finalizers = finalizers
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "left"}}
	set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	service := &corev1.Service{ObjectMeta: meta(operands), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
	class := &nodev1.RuntimeClass{ObjectMeta: meta(""), Handler: "left"}
	devices := &resourcev1.DeviceClass{ObjectMeta: meta("")}
	devices.Name = "gpu.nvidia.com"                                           // cleanup may delete no other
	b.remove(t, &resourcev1.DeviceClass{ObjectMeta: named("", devices.Name)}) // the policy's own goes with the policy
	node := gpuNode("n2")
	node.Labels["nvidia.com/gpu.product"] = "NVIDIA-H200"
	node.Annotations = map[string]string{"gpuready.io/feature-labels": "gpu.product"}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue})
	b.create(t, set, service, class, devices, node)
}

// validator returns a pod of that DaemonSet. It is on no node, so a delete removes it at once.
func validator() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named(operands, "validator")}
	p.Labels = map[string]string{"app": "nvidia-operator-validator", "app.kubernetes.io/part-of": "gpuready"}
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	return p
}

// tidy removes the node; the cleanup has removed the rest.
func (b *bench) tidy(t *testing.T) {
	t.Helper()
	b.remove(t, gpuNode("n2"))
}

// otherOperator returns a Deployment that a tenant created and nobody runs.
func otherOperator(generation int) *appsv1.Deployment {
	labels := map[string]string{"app": "other"}
	d := &appsv1.Deployment{ObjectMeta: named("default", "gpu-operator")}
	d.Spec = appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"generation": strconv.Itoa(generation)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}}
	return d
}
