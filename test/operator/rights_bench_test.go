package operator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// bench is a control plane without nodes. The operator runs beside it as a process of this
// machine, with exactly the tokens and roles of its chart.
type bench struct {
	*suite
	client.Client // an administrator's
	trail         *trail
	dir           string
	program       *process // running now, or the last one that ran
	since         int      // offset in its output at which the current step began
	version       int      // counter that gives each requested driver a new version
}

// newBench starts the control plane, and installs the chart's accounts and roles.
func newBench(t *testing.T) *bench {
	t.Helper()
	s := up(t, cluster.Config{
		Bare: true,
		// No kubelet reports for the nodes, and the test owns the pods.
		Controllers: "*,-daemonset-controller,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller",
		Admission:   []string{"OwnerReferencesPermissionEnforcement"}, // as on OpenShift
		Audit:       "system:serviceaccounts:" + namespace,
	})
	kinds := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(kinds))
	require.NoError(t, v1alpha1.AddToScheme(kinds))
	kinds.AddKnownTypeWithName(state.ServiceMonitor, &serviceMonitor{})
	metav1.AddToGroupVersion(kinds, state.ServiceMonitor.GroupVersion())
	admin, err := client.New(s.World.Config, client.Options{Scheme: kinds})
	require.NoError(t, err)
	b := &bench{suite: s, Client: admin, dir: t.TempDir(), trail: &trail{path: s.Audited(), used: map[string]bool{}}}
	t.Cleanup(func() { b.stop() })
	b.Kubectl(t, "create", "namespace", namespace)
	b.Kubectl(t, "create", "namespace", "openshift")
	b.Kubectl(t, "apply", "-f", "testdata/openshift.yaml", "-f", "testdata/servicemonitors.yaml")
	b.install(t)
	b.served(t, "crd/clusterpolicies.nvidia.com", "crd/nvidiadrivers.nvidia.com", "crd/imagestreams.image.openshift.io", "crd/servicemonitors.monitoring.coreos.com")
	for _, account := range []string{"gpuready-operator", "gpuready-operator-crds", "gpuready-operator-cleanup"} {
		b.kubeconfig(t, account)
	}
	b.furnish(t)
	b.create(t, imageStream())
	return b
}

func (b *bench) install(t *testing.T) {
	t.Helper()
	out := b.helm(t, "template", "gpuready", chart(), "--namespace", namespace, "--include-crds", "--set", "nfd.enabled=false",
		"--set", "clusterPolicy.create=false", "--set", "operands.namespace="+operands, "--set", "platform.openshift=true")
	for text := range strings.SplitSeq("\n"+out, "\n---\n") {
		var o unstructured.Unstructured
		require.NoError(t, yaml.Unmarshal([]byte(text), &o.Object))
		if slices.Contains([]string{"Namespace", "ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "CustomResourceDefinition"}, o.GetKind()) {
			require.NoError(t, b.Create(t.Context(), &o), "%s %s", o.GetKind(), o.GetName())
		}
	}
}

// config returns the path of an account's kubeconfig.
func (b *bench) config(account string) string { return filepath.Join(b.dir, account+".kubeconfig") }

// kubeconfig writes a kubeconfig with an account's token and nothing else.
func (b *bench) kubeconfig(t *testing.T, account string) {
	t.Helper()
	token, err := b.World.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: b.World.Config.Host, CertificateAuthorityData: b.World.Config.CAData}
	c.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	c.CurrentContext = "c"
	require.NoError(t, clientcmd.WriteToFile(*c, b.config(account)))
}

// process is a run of gpu-operator with one of its commands.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// start runs a command with an account's rights.
func (b *bench) start(t *testing.T, account string, env []string, args ...string) {
	t.Helper()
	b.stop()
	file, err := os.CreateTemp(b.dir, account+"-*.log")
	require.NoError(t, err)
	defer file.Close()
	p := &process{log: file.Name(), ended: make(chan struct{})}
	p.cmd = exec.Command(program("gpu-operator"), append(args, "--kubeconfig", b.config(account))...) //nolint:noctx // stop ends it with a signal
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	b.program, b.since = p, 0
}

// operate starts the operator.
func (b *bench) operate(t *testing.T, env ...string) {
	t.Helper()
	b.start(t, "gpuready-operator", env, "run", "--namespace", namespace, "--operand-namespace", operands, "--listen=", "--insecure-registries=127.0.0.1:1")
}

// stop ends the running program.
func (b *bench) stop() {
	if b.program == nil {
		return
	}
	_ = b.program.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-b.program.ended:
	case <-time.After(20 * time.Second):
		_ = b.program.cmd.Process.Kill()
		<-b.program.ended
	}
}

// exited reports whether the program has ended, and with which exit code.
func (p *process) exited() (code int, ended bool) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), true
	default:
		return 0, false
	}
}

// printed returns the program's output since the current step began.
func (b *bench) printed() string {
	if b.program == nil { // the test has its own
		return ""
	}
	data, _ := os.ReadFile(b.program.log)
	return string(data[min(b.since, len(data)):])
}

// mark begins a step.
func (b *bench) mark() { b.since = 0; b.since = len(b.printed()) }

// revoke removes a right and returns a function that restores it. Both wait until the API
// server applies the change.
func (b *bench) revoke(t *testing.T, r right) (restore func()) {
	t.Helper()
	at := roles[r.where]
	key := client.ObjectKey{Namespace: at.namespace, Name: at.name}
	without := func(rules []rbacv1.PolicyRule) (rest []rbacv1.PolicyRule, found bool) {
		for _, rule := range rules {
			if slices.Equal(rule.APIGroups, []string{r.group}) && slices.Equal(rule.Resources, []string{r.resource}) && slices.Contains(rule.Verbs, r.verb) {
				found = true
				rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == r.verb })
			}
			if len(rule.Verbs) > 0 {
				rest = append(rest, rule)
			}
		}
		return rest, found
	}
	set := func(change func([]rbacv1.PolicyRule) []rbacv1.PolicyRule) {
		if at.kind == "ClusterRole" {
			var role rbacv1.ClusterRole
			require.NoError(t, b.Get(t.Context(), key, &role))
			role.Rules = change(role.Rules)
			require.NoError(t, b.Update(t.Context(), &role))
			return
		}
		var role rbacv1.Role
		require.NoError(t, b.Get(t.Context(), key, &role))
		role.Rules = change(role.Rules)
		require.NoError(t, b.Update(t.Context(), &role))
	}
	var before []rbacv1.PolicyRule
	set(func(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
		rest, found := without(rules)
		require.Truef(t, found, "the chart's %s %s has no rule of its own for %s", at.kind, at.name, r)
		before = rules
		return rest
	})
	b.waitAllowed(t, r, false)
	return func() {
		set(func([]rbacv1.PolicyRule) []rbacv1.PolicyRule { return before })
		b.waitAllowed(t, r, true)
	}
}

// waitAllowed waits until the account has, or no longer has, the right.
func (b *bench) waitAllowed(t *testing.T, r right, want bool) {
	t.Helper()
	at := roles[r.where]
	resource, sub, _ := strings.Cut(r.resource, "/")
	require.Eventually(t, func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: accountPrefix + namespace + ":" + at.account, Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: at.namespace, Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub, Name: r.name},
		}}
		return b.Create(t.Context(), review) == nil && review.Status.Allowed == want
	}, patience, 10*time.Millisecond, "%s: allowed %v", r, want)
}

// reportsMissing returns an error unless the program reports the missing right and what to
// do, in the policy's conditions or in its output.
func (b *bench) reportsMissing(t *testing.T, r right, inStatus bool) error {
	t.Helper()
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	lack := r.verb + " " + resource + " in " // the cluster, or the namespace of the request
	if ns := roles[r.where].namespace; ns != "" {
		lack = r.verb + " " + resource + " in namespace " + ns
	}
	// A condition is short, so anything after the first part may be cut off.
	action, _, _ := strings.Cut(status.RightsRemedy, ":")
	text := b.printed()
	if inStatus {
		p, err := b.policy(t, policy)
		if err != nil {
			return err
		}
		text = fmt.Sprint(p.Status.Conditions)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, lack) && strings.Contains(line, action) {
			return nil
		}
	}
	return fmt.Errorf("nothing says %q and what to do:\n%s", lack, text)
}

// object reads an object; nil means that it does not exist.
func object[T any, P interface {
	*T
	client.Object
}](t *testing.T, b *bench, namespace, name string) P {
	t.Helper()
	var o T
	err := b.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, P(&o))
	if client.IgnoreNotFound(err) != nil {
		require.NoError(t, err)
	}
	if err != nil {
		return nil
	}
	return &o
}

// merge patches an object as an administrator.
func (b *bench) merge(t *testing.T, o client.Object, patch string) {
	t.Helper()
	require.NoError(t, b.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// remove deletes objects at once, as far as they exist.
func (b *bench) remove(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		require.NoError(t, client.IgnoreNotFound(b.Delete(t.Context(), o, client.GracePeriodSeconds(0))))
		require.Eventually(t, func() bool {
			return apierrors.IsNotFound(b.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		}, patience, 20*time.Millisecond, "%T %s is gone", o, o.GetName())
	}
}

// named returns the ObjectMeta of an object that is only deleted or patched.
func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// gpuNode returns a Node as a kubelet and NFD describe it.
func gpuNode(name string) *corev1.Node {
	const feature = "feature.node.kubernetes.io/"
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			feature + "pci-10de.present": "true", feature + "kernel-version.full": "5.15.0-105-generic",
			feature + "system-os_release.ID": "ubuntu", feature + "system-os_release.VERSION_ID": "22.04",
		}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.33.4", ContainerRuntimeVersion: "containerd://2.1.4"},
		},
	}
}

// serviceMonitor is the prometheus-operator's ServiceMonitor, without its spec.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`
}

// DeepCopyObject returns a copy.
func (m *serviceMonitor) DeepCopyObject() runtime.Object {
	return &serviceMonitor{m.TypeMeta, *m.DeepCopy()}
}

// imageStream returns OpenShift's ImageStream; nothing here pulls an image from it.
func imageStream() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	u.SetAPIVersion("image.openshift.io/v1")
	u.SetKind("ImageStream")
	u.SetNamespace("openshift")
	u.SetName("driver-toolkit")
	return u
}
