package operator

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
)

// jobs is the number of pods with a GPU on the node.
const jobs = 40

// TestSlowAndRefused checks that slow or refused requests delay only the nodes they concern:
// an admission webhook that takes 10 s for each eviction, and a node that rejects writes.
func TestSlowAndRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.operate(t)
	b.waitNoError(t, "the operator works", b.works)
	b.play(t,
		scenario{"AWebhookTakes10SecondsOverEachEviction", func(t *testing.T, _ *suite) { b.slowEvictions(t) }},
		scenario{"ANodeThatNobodyMayWrite", func(t *testing.T, _ *suite) { b.unwritableNode(t) }},
		scenario{"NVIDIAsOperatorIsScaledToNone", func(t *testing.T, _ *suite) { b.scaledToNone(t) }},
		scenario{"AnOlderPolicy", func(t *testing.T, _ *suite) { b.olderPolicy(t) }},
	)
}

// webhook is an admission webhook in this process.
type webhook struct {
	mu       sync.Mutex
	requests map[string]int // number of requests by the object's name
	free     chan struct{}  // closed when it may respond at once
}

const webhookPort = 8443

// slow installs a webhook that delays each eviction in the namespace default by 10 s, until
// it is opened.
func (b *bench) slow(t *testing.T) *webhook {
	t.Helper()
	w := &webhook{requests: map[string]int{}, free: make(chan struct{})}
	l, err := b.Listen(t.Context(), webhookPort)
	require.NoError(t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: w, ReadHeaderTimeout: time.Minute}}
	authority, err := folder.NewAuthority("webhook")
	require.NoError(t, err)
	pair, err := authority.Issue(folder.Subject{Name: "webhook", Hosts: []string{cluster.PlaneIP}})
	require.NoError(t, err)
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(w.open)
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: named("", "slow")}
	config.Webhooks = []admissionregistrationv1.ValidatingWebhook{{
		Name:         "slow.example.com",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://" + net.JoinHostPort(cluster.PlaneIP, fmt.Sprint(webhookPort)) + "/"), CABundle: authority.PEM},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
		}},
		TimeoutSeconds: new(int32(20)), FailurePolicy: new(admissionregistrationv1.Fail),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}}
	b.create(t, config)
	t.Cleanup(func() { _ = b.Delete(context.Background(), config) })
	return w
}

func (w *webhook) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.free:
	default:
		close(w.free)
	}
}

func (w *webhook) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(out, "no review", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	w.requests[review.Request.Name]++
	w.mu.Unlock()
	select {
	case <-w.free:
	case <-time.After(10 * time.Second):
	case <-r.Context().Done():
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(review)
}

// pods returns the number of pods for which the webhook was called.
func (w *webhook) pods() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.requests)
}

// slowEvictions runs 40 evictions at once. Meanwhile a joining node must be labelled, a
// deleted object restored and the status written.
func (b *bench) slowEvictions(t *testing.T) {
	w := b.slow(t)
	names := make([]string, jobs)
	for i := range names {
		names[i] = fmt.Sprintf("job-%d", i+1)
	}
	b.outdated(t, names...)
	began := time.Now()
	b.waitNoError(t, "an eviction is being waited for", func() error {
		if w.pods() == 0 {
			return errors.New("none is")
		}
		return nil
	})
	b.create(t, gpuNode("n3"))
	require.NoError(t, b.Delete(t.Context(), target[corev1.Service]("operands", "nvidia-dcgm")))
	for _, c := range []struct {
		what string
		is   func() error
	}{
		{"all evictions are asked for, and none has been answered", func() error {
			if n := w.pods(); n < jobs {
				return fmt.Errorf("%d are", n)
			}
			return nil
		}},
		{"the node that has joined is labelled", func() error {
			if n := object[corev1.Node](t, b, "", "n3"); n.Labels["nvidia.com/gpu.present"] != "true" {
				return fmt.Errorf("labels %v", n.Labels)
			}
			return nil
		}},
		{"the object that was deleted is there again", func() error {
			if object[corev1.Service](t, b, operands, "nvidia-dcgm") == nil {
				return errors.New("it is not")
			}
			return nil
		}},
		{"the status counts three nodes", func() error { return b.counts(t, "total", 3) }},
	} {
		b.waitNoError(t, c.what, c.is)
		t.Logf("%5.1f s until %s", time.Since(began).Seconds(), c.what)
	}
	b.waitNoError(t, "the pods and the old driver's are gone", func() error {
		w.open() // also for retries
		for _, name := range names {
			if object[corev1.Pod](t, b, "default", name) != nil {
				return fmt.Errorf("%s is there", name)
			}
		}
		return b.moved(t)
	})
	t.Logf("%5.1f s until all pods are gone", time.Since(began).Seconds())
	b.removeOutdated(t)
	b.remove(t, gpuNode("n3"))
}

// unwritableNode rejects every write of the operator to one node. The other nodes must be
// upgraded although only one may be unavailable, and the status must name the node.
func (b *bench) unwritableNode(t *testing.T) {
	b.change(t, `{"driver":{"upgradePolicy":{"maxParallelUpgrades":1}}}`)
	set := b.driverNode(t)
	b.create(t, gpuNode("n4"))
	policyAndBinding := `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: locked }
spec:
  matchConstraints: { resourceRules: [{ apiGroups: [""], apiVersions: [v1], resources: [nodes], operations: [UPDATE], resourceNames: [n2] }] }
  validations: [{ expression: 'false', message: n2 is locked }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: locked }
spec: { policyName: locked, validationActions: [Deny] }
`
	b.ApplyText(t, policyAndBinding)
	defer b.Kubectl(t, "delete", "validatingadmissionpolicy/locked", "validatingadmissionpolicybinding/locked")
	b.waitNoError(t, "n2 is locked", func() error {
		n := object[corev1.Node](t, b, "", "n2")
		n.Annotations = map[string]string{"test": "locked"}
		if b.Update(t.Context(), n, client.DryRunAll) == nil {
			return errors.New("it is not")
		}
		return nil
	})
	b.oldDriver(t, set)
	b.waitNoError(t, "the status says that n2 cannot be written, and why", func() error {
		p, err := b.policy(t, policy)
		if err != nil {
			return err
		}
		if text := fmt.Sprint(p.Status.Conditions); !strings.Contains(text, "n2") || !strings.Contains(text, "n2 is locked") {
			return errors.New(text)
		}
		return nil
	})
	b.removeOutdated(t)
	b.remove(t, gpuNode("n4"))
}

// scaledToNone runs NVIDIA's operator, then scales it to zero.
func (b *bench) scaledToNone(t *testing.T) {
	b.mark()
	says := func(text string) func() error {
		return func() error {
			if out := b.printed(); !strings.Contains(out, text) {
				return fmt.Errorf("the log does not say %q:\n%s", text, out)
			}
			return nil
		}
	}
	b.ApplyText(t, fmt.Sprintf(theirs, "none"))
	b.waitNoError(t, "NVIDIA's runs", says("reason=OtherOperatorRuns"))
	b.Kubectl(t, "-n", "gpu-operator", "scale", "deployment/gpu-operator", "--replicas=0")
	b.waitNoError(t, "NVIDIA's does not run any more", says("does not run any more"))
	b.change(t, `{"operator":{"labels":{"example.com/change":"%d"}}}`, b.next())
	b.waitNoError(t, "the operator serves the policy again", func() error { return b.observed(t) })
	b.Kubectl(t, "-n", "gpu-operator", "delete", "deployment/gpu-operator")
}

// olderPolicy applies a second policy beside an existing one.
func (b *bench) olderPolicy(t *testing.T) {
	began := time.Now()
	b.ApplyText(t, "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: { name: second }\nspec: {}\n")
	b.waitNoError(t, "whoever waits for it is told that waiting does not help", func() error {
		return b.condition(t, "second", "Stalled", "True", "Ignored", policy)
	})
	t.Logf("%5.1f s", time.Since(began).Seconds())
	assert.Error(t, b.condition(t, policy, "Stalled", "True", ""))
	b.Kubectl(t, "delete", "clusterpolicy", "second")
}

// claimed returns a pod that gets a GPU through a ResourceClaim only, and the claim.
func claimed() (*resourcev1.ResourceClaim, *corev1.Pod) {
	p := boundPod("default", "claimed", nil)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"},
		}}}},
	}, p
}
