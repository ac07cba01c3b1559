package status

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Texts of the API server of Kubernetes 1.37.
var (
	errNamed   = errors.New(`daemonsets.apps "a" is forbidden: User "system:serviceaccount:x:gpu-operator" cannot patch resource "daemonsets" in API group "apps" in the namespace "operands"`)
	errListed  = errors.New(`failed to list *v1.Node: nodes is forbidden: User "system:serviceaccount:x:gpu-operator" cannot list resource "nodes" in API group "" at the cluster scope`)
	errEvicted = errors.New(`pods "p" is forbidden: User "u" cannot create resource "pods/eviction" in API group "" in the namespace "default"`)
	errQuota   = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota: q, requested: pods=1"))
)

func TestMissingRightsAreNamedOnceEach(t *testing.T) {
	all := errors.Join(fmt.Errorf("apply DaemonSet operands/a: %w", errNamed), errListed, errNamed, errEvicted)
	require.Equal(t, []string{"create pods/eviction in namespace default", "list nodes in the cluster", "patch daemonsets.apps in namespace operands"}, MissingRights(all.Error()))
	require.Empty(t, MissingRights(errQuota.Error()), "admission refuses for other reasons")
}

func TestMessageNamesPermissionAndNextAction(t *testing.T) {
	require.Equal(t, "the operator may not list nodes in the cluster: "+RightsRemedy, ExplainError(errListed))
	require.Equal(t, errQuota.Error(), ExplainError(errQuota))
}

func TestLogRecordsOfLibrariesNameTheMissingPermission(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(LogHandler(slog.NewTextHandler(&out, nil))).With("component", "operator")
	log.Error("Failed to watch", "err", errListed, "type", "*v1.Node")
	require.Contains(t, out.String(), `missing="list nodes in the cluster" next="install its roles`)
	out.Reset()
	log.Error("error retrieving resource lock x/y: " + errNamed.Error())
	require.Contains(t, out.String(), `missing="patch daemonsets.apps in namespace operands"`)
	out.Reset()
	log.Error("failed", "error", errQuota)
	require.NotContains(t, out.String(), "missing=")
}
