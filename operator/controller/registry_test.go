package controller

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	server "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/registry"
)

// serve serves a driver's images over TLS. It returns the registry's host and certificate.
func serve(t *testing.T, tags ...string) (host, ca string) {
	t.Helper()
	s := httptest.NewUnstartedServer(server.New(server.Logger(log.New(io.Discard, "", 0))))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	host = strings.TrimPrefix(s.URL, "https://")
	image, err := random.Image(64, 1)
	require.NoError(t, err)
	for _, tag := range tags {
		ref, err := name.ParseReference(host + "/driver:" + tag)
		require.NoError(t, err)
		require.NoError(t, remote.Write(ref, image, remote.WithTransport(s.Client().Transport)))
	}
	return host, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func TestRegistryLookupUsesThePolicysCertificates(t *testing.T) {
	const newer = "5.15.0-107-generic"
	host, ca := serve(t, "535-"+kernel+"-ubuntu22.04", "535-"+newer+"-ubuntu22.04")
	w := newWorld(t)
	asks, err := registry.New(registry.Options{})
	require.NoError(t, err)
	w.query, w.notified = NewLookup(asks, w.Client, namespace, metrics.New(prometheus.NewRegistry())), make(chan string, 10)
	w.start()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.registry.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	// hear waits until both images were looked up.
	hear := func() {
		w.settle()
		<-w.notified
		<-w.notified
		w.settle()
	}
	degraded := func() *metav1.Condition {
		return meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded)
	}

	p := precompiled()
	p.Spec.Driver.Repository, p.Spec.Driver.CertConfig = host, &v1.DriverCertConfigSpec{Name: "certs"}
	w.create(gpuNode("n1"), gpuNode("n2", label.Kernel, newer), p)
	hear()
	require.Equal(t, 1, strings.Count(degraded().Message, "spec.driver.certConfig.name: ConfigMap gpuready/certs does not exist"), degraded().Message)

	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "certs", Namespace: namespace}, Data: map[string]string{"ca.crt": "no certificate", "other": ca}}
	w.create(m, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "others", Namespace: namespace}, Data: map[string]string{"ca.crt": ca}})
	hear()
	require.Equal(t, string(reasonCertificates), degraded().Reason)
	require.Equal(t, "driver: spec.driver.certConfig.name: ConfigMap gpuready/certs: key ca.crt: no certificate in PEM form; registries are asked without it: correct it", degraded().Message)
	require.Len(t, drivers(w), 2, "the other key has what the registry is trusted by")

	m.Data, m.BinaryData = nil, map[string][]byte{"ca.crt": []byte(ca)}
	require.NoError(t, w.Update(t.Context(), m))
	hear()
	require.Equal(t, metav1.ConditionFalse, degraded().Status, degraded().Message)
	require.Empty(t, w.policy("policy").Status.Pools[0].Reason)
}

func TestModelKeepsNoConfigMapValues(t *testing.T) {
	w := newWorld(t)
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "certs", Namespace: namespace}, Data: map[string]string{"a": "b"}, BinaryData: map[string][]byte{"c": []byte("d")}})
	w.syncModel()
	require.Equal(t, map[string]string{"a": ""}, w.model.configMaps["certs"].Data)
	require.Equal(t, map[string][]byte{"c": nil}, w.model.configMaps["certs"].BinaryData)
}
