package kube

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newClient(t *testing.T) (*Client, *kubetest.Server) {
	t.Helper()
	s := kubetest.Start("n1")
	t.Cleanup(s.Stop)
	c, err := New(s.Config())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, s
}

func TestARequestIsTriedOnceAndTimesOut(t *testing.T) {
	c, s := newClient(t)
	s.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Status: 429, RetryAfter: 1} })
	_, err := c.Node(t.Context(), "n1")
	require.True(t, apierrors.IsTooManyRequests(err), err)
	require.Len(t, s.Requests(), 1, "when to try again is for the caller")

	c.timeout = 10 * time.Millisecond
	s.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Hang: true} })
	_, err = c.Node(t.Context(), "n1")
	require.ErrorContains(t, err, "the API server has not answered within 10ms")
	_, err = c.WatchNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	require.ErrorContains(t, err, "the API server has not begun the watch within 10ms")
}

func TestARefusedTokenIsReadAgain(t *testing.T) {
	s := kubetest.Start("n1")
	t.Cleanup(s.Stop)
	dir := t.TempDir()
	token := func(name string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(name), 0o600))
	}
	_, err := Config(s.URL(), dir)
	require.ErrorContains(t, err, "automountServiceAccountToken")
	token("first")
	config, err := Config(s.URL(), dir)
	require.NoError(t, err)
	c, err := New(config)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s.Token("first")
	_, err = c.Node(t.Context(), "n1")
	require.NoError(t, err)
	token("second")
	s.Token("second")
	_, err = c.Node(t.Context(), "n1")
	require.True(t, apierrors.IsUnauthorized(err), err)
	_, err = c.Node(t.Context(), "n1")
	require.NoError(t, err)
}

func TestOutsideOfAPodTheServerHasToBeNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := Config("", t.TempDir())
	require.ErrorContains(t, err, "--api-server")
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600))
	config, err := Config("", dir)
	require.NoError(t, err)
	require.Equal(t, "https://[fd00::1]:443", config.Host)
	require.Equal(t, filepath.Join(dir, "ca.crt"), config.CAFile)
}

func TestAPodIsWatchedFromItsResourceVersion(t *testing.T) {
	c, s := newClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := c.CreatePod(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpuready", Name: "a"}})
	require.NoError(t, err)
	s.AddPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpuready", Name: "b"}})
	s.Update("gpuready/a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	w, err := c.WatchPod(ctx, p)
	require.NoError(t, err)
	defer w.Stop()
	e := <-w.ResultChan()
	require.Equal(t, watch.Modified, e.Type)
	require.Equal(t, corev1.PodRunning, e.Object.(*corev1.Pod).Status.Phase)

	other := p.DeepCopy()
	other.UID = "another"
	require.True(t, apierrors.IsConflict(c.DeletePod(ctx, other)), "not one that was made anew meanwhile")
	require.NoError(t, c.DeletePod(ctx, p))
	require.Equal(t, watch.Deleted, (<-w.ResultChan()).Type)
	_, err = c.Pod(ctx, "gpuready", "a")
	require.True(t, apierrors.IsNotFound(err))
}
