package operator

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// second is the namespace of another installation of the operator.
const second = "another-gpu-operator"

// TestLeader checks that two operators never write at the same time, whatever happens to the
// Lease, to the leading process or to installations in other namespaces.
func TestLeader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.play(t,
		scenario{"TheLeaseIsDeleted", func(t *testing.T, _ *suite) { b.leaseDeleted(t) }},
		scenario{"TheLeaseIsHandedToAnother", func(t *testing.T, _ *suite) { b.leaseHandedOver(t) }},
		scenario{"TheLeaderIsStopped", func(t *testing.T, _ *suite) { b.leaderStopped(t) }},
		scenario{"TwoInstallations", func(t *testing.T, _ *suite) { b.twoInstallations(t) }},
	)
}

// replica is one of several operators, with its own token.
type replica struct {
	*process
	name, credential string
}

// replica starts an operator as a pod of an installation would.
func (b *bench) replica(t *testing.T, namespace, operands, pod string) *replica {
	t.Helper()
	token, err := b.World.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "gpuready-operator", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: b.World.Config.Host, CertificateAuthorityData: b.World.Config.CAData}
	c.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	c.CurrentContext = "c"
	file := filepath.Join(b.dir, namespace+"-"+pod+".kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*c, file))
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Status.Token, ".")[1])
	require.NoError(t, err)
	var id struct{ JTI string }
	require.NoError(t, json.Unmarshal(claims, &id))

	log, err := os.CreateTemp(b.dir, pod+"-*.log")
	require.NoError(t, err)
	defer log.Close()
	p := &process{log: log.Name(), ended: make(chan struct{})}
	p.cmd = exec.Command(program("gpu-operator"), "run", "--namespace", namespace, "--operand-namespace", operands, "--listen=", "--insecure-registries=127.0.0.1:1", //nolint:noctx // it is ended by a signal
		"--pod-name", pod, "--pod-uid", "uid-"+pod, "--kubeconfig", file)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	r := &replica{p, pod, "JTI=" + id.JTI}
	t.Cleanup(func() { r.end(syscall.SIGCONT, syscall.SIGKILL) })
	return r
}

// end sends signals, and waits until the process has ended.
func (r *replica) end(signals ...syscall.Signal) {
	for _, s := range signals {
		_ = r.cmd.Process.Signal(s)
	}
	<-r.ended
}

// printed returns an error until the process has printed the text.
func (r *replica) printed(what string) error {
	data, err := os.ReadFile(r.log)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), what) {
		return fmt.Errorf("%s has not said %q:\n%s", r.name, what, data)
	}
	return nil
}

// awaitLead waits until a process leads, and returns how long that took.
func (b *bench) awaitLead(t *testing.T, r *replica) time.Duration {
	t.Helper()
	began := time.Now()
	b.waitNoError(t, r.name+" leads", func() error { return r.printed("msg=working") })
	return time.Since(began)
}

// stir makes the leading operator write several times a second: it keeps removing a label
// that the operator restores, until stop is called.
func (b *bench) stir(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
				_ = b.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"nvidia.com/gpu.deploy.device-plugin":null}}}`)))
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// written is a write of one of the operators that the API server accepted.
type written struct {
	Verb      string
	User      struct{ Extra map[string][]string }
	ObjectRef *struct{ Resource, Name string }
	Time      time.Time          `json:"requestReceivedTimestamp"`
	Response  struct{ Code int } `json:"responseStatus"`
}

// writes returns all writes of an operator except those to the Lease.
func (b *bench) writes(t *testing.T, r *replica) (all []written) {
	t.Helper()
	file, err := os.Open(b.Audited())
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all
		}
		var w written
		require.NoError(t, json.Unmarshal(line, &w))
		if !slices.Contains(w.User.Extra["authentication.kubernetes.io/credential-id"], r.credential) || w.ObjectRef == nil || w.Response.Code >= 300 {
			continue
		}
		if slices.Contains([]string{"create", "update", "patch", "delete"}, w.Verb) && w.ObjectRef.Resource != "leases" {
			all = append(all, w)
		}
	}
}

// follows waits until the second of two operators has written often. The test fails if the
// first one wrote after the second had begun.
func (b *bench) follows(t *testing.T, one, next *replica) {
	t.Helper()
	b.waitNoError(t, next.name+" writes", func() error {
		if n := len(b.writes(t, next)); n < 20 {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})
	before, after := b.writes(t, one), b.writes(t, next)
	require.NotEmpty(t, before, "%s has written while it led", one.name)
	last, begun := before[len(before)-1], after[0]
	t.Logf("%s wrote last %.3f s before %s wrote first (%d and %d writes)", one.name, begun.Time.Sub(last.Time).Seconds(), next.name, len(before), len(after))
	assert.Falsef(t, begun.Time.Before(last.Time), "two wrote: %s since %v, %s until %v", next.name, begun.Time, one.name, last.Time)
}

// leases returns all Leases with the operator's name.
func (b *bench) leases(t *testing.T) []coordinationv1.Lease {
	t.Helper()
	var list coordinationv1.LeaseList
	require.NoError(t, b.List(t.Context(), &list))
	return slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool { return l.Name != "gpu-operator.gpuready.io" })
}

// pair starts two replicas; the first one leads and writes.
func (b *bench) pair(t *testing.T, name string) (one, next *replica, stop func()) {
	t.Helper()
	one = b.replica(t, namespace, operands, name+"-1")
	b.awaitLead(t, one)
	next = b.replica(t, namespace, operands, name+"-2")
	stop = b.stir(t)
	b.waitNoError(t, one.name+" writes, and "+next.name+" stands by", func() error {
		if len(b.writes(t, one)) < 5 {
			return fmt.Errorf("%d writes", len(b.writes(t, one)))
		}
		return next.printed("stand")
	})
	return one, next, stop
}

func (b *bench) leaseDeleted(t *testing.T) {
	one, next, stop := b.pair(t, "deleted")
	defer stop()
	began := time.Now()
	for _, l := range b.leases(t) {
		require.NoError(t, b.Delete(t.Context(), &l))
	}
	b.follows(t, one, next)
	<-one.ended
	require.NoError(t, one.printed("was deleted: this operator stops"))
	t.Logf("%s led %.1f s after the Lease was deleted", next.name, b.awaitLead(t, next).Seconds()+time.Since(began).Seconds())
	stop()
	three := b.replica(t, namespace, operands, "released")
	b.waitNoError(t, three.name+" stands by", func() error { return three.printed("stand") })
	began = time.Now()
	next.end(syscall.SIGTERM)
	b.awaitLead(t, three)
	t.Logf("the next one led %.2f s after SIGTERM", time.Since(began).Seconds())
	three.end(syscall.SIGTERM)
}

func (b *bench) leaseHandedOver(t *testing.T) {
	one, next, stop := b.pair(t, "handed")
	defer stop()
	for _, l := range b.leases(t) {
		b.merge(t, &l, `{"spec":{"holderIdentity":""}}`)
	}
	b.follows(t, one, next)
	<-one.ended
	stop()
	next.end(syscall.SIGTERM)
}

// leaderStopped stops the leading process for longer than its Lease lasts, then continues it
// with the writes it had pending.
func (b *bench) leaderStopped(t *testing.T) {
	one, next, stop := b.pair(t, "stopped")
	defer stop()
	began := time.Now()
	require.NoError(t, one.cmd.Process.Signal(syscall.SIGSTOP))
	b.awaitLead(t, next)
	t.Logf("the next one led %.1f s after the leader had been stopped", time.Since(began).Seconds())
	require.NoError(t, one.cmd.Process.Signal(syscall.SIGCONT))
	<-one.ended
	b.follows(t, one, next)
	stop()
	next.end(syscall.SIGTERM)
}

// installSecond installs the chart in a second namespace. Objects whose name is already taken
// stay as they are.
func (b *bench) installSecond(t *testing.T) {
	t.Helper()
	b.Kubectl(t, "create", "namespace", second)
	out := b.helm(t, "template", "gpuready", chart(), "--namespace", second, "--set", "nfd.enabled=false", "--set", "clusterPolicy.create=false")
	for text := range strings.SplitSeq("\n"+out, "\n---\n") {
		var o unstructured.Unstructured
		require.NoError(t, yaml.Unmarshal([]byte(text), &o.Object))
		if slices.Contains([]string{"ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}, o.GetKind()) {
			if err := b.Create(t.Context(), &o); err != nil {
				require.True(t, apierrors.IsAlreadyExists(err), "%s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// installation creates an operator's Deployment that never gets a pod.
func (b *bench) installation(t *testing.T, namespace string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": "gpuready-operator"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpuready-operator", Labels: map[string]string{"app.kubernetes.io/part-of": "gpuready"}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "gpuready-operator", Image: "none"}}}},
		},
	}
	require.NoError(t, b.Create(t.Context(), d))
	return d
}

// twoInstallations runs a second operator in another namespace, where it would also place its
// operands.
func (b *bench) twoInstallations(t *testing.T) {
	b.installSecond(t)
	first := b.installation(t, namespace)
	one := b.replica(t, namespace, operands, "first")
	b.awaitLead(t, one)
	b.waitNoError(t, "the operands are made", func() error { return b.madeIn(t, operands) })
	b.installation(t, second)
	// An administrator of one namespace can create a Lease there. It has no effect.
	forged := &coordinationv1.Lease{ObjectMeta: named(second, "gpu-operator.gpuready.io"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("forged"), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro())}}
	b.create(t, forged)
	other := b.replica(t, second, second, "second")
	b.waitNoError(t, "the second one says that it stands down, and for whom", func() error {
		if err := other.printed("reason=AnotherOperator namespace=" + namespace + " deployment=gpuready-operator"); err != nil {
			return err
		}
		return b.condition(t, policy, "Contested", "True", "AnotherOperator", namespace+"/gpuready-operator", second+"/gpuready-operator")
	})

	one.end(syscall.SIGTERM) // its pod is replaced
	one = b.replica(t, namespace, operands, "first-again")
	began := time.Now()
	b.awaitLead(t, one)
	t.Logf("an installation whose pod was replaced led on after %.1f s", time.Since(began).Seconds())
	stop := b.stir(t)
	b.waitNoError(t, one.name+" writes", func() error {
		if len(b.writes(t, one)) < 5 {
			return fmt.Errorf("%d writes", len(b.writes(t, one)))
		}
		return nil
	})
	stop()
	require.Error(t, b.madeIn(t, second), "two stacks")
	require.Error(t, other.printed("msg=working"))

	// It is uninstalled but leaves a DaemonSet with a pod.
	set := object[appsv1.DaemonSet](t, b, operands, "nvidia-device-plugin-daemonset")
	require.NotNil(t, set)
	left := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: operands, Name: "left", Labels: map[string]string{"app.kubernetes.io/part-of": "gpuready"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	b.create(t, left)
	require.NoError(t, b.Delete(t.Context(), first))
	began = time.Now()
	one.end(syscall.SIGTERM)
	b.awaitLead(t, other)
	t.Logf("the second installation led %.2f s after the first was gone", time.Since(began).Seconds())
	b.waitNoError(t, "it makes nothing beside the operands that are there, and says so", func() error {
		return b.condition(t, policy, "Ready", "False", "AnotherOperator", "kubectl -n "+operands+" delete daemonsets")
	})
	require.Error(t, b.madeIn(t, second), "two stacks")
	b.remove(t, left)
	b.waitNoError(t, "they are gone, and its own are made", func() error { return b.madeIn(t, second) })
	b.waitNoError(t, "nobody stands down any more", func() error {
		if err := b.condition(t, policy, "Contested", "True", ""); err == nil {
			return fmt.Errorf("the policy says that one does")
		}
		return nil
	})
	other.end(syscall.SIGTERM)
}

// madeIn returns an error until the operands are in a namespace.
func (b *bench) madeIn(t *testing.T, namespace string) error {
	t.Helper()
	if object[appsv1.DaemonSet](t, b, namespace, "nvidia-operator-validator") == nil {
		return fmt.Errorf("there is no DaemonSet nvidia-operator-validator in %s", namespace)
	}
	return nil
}
