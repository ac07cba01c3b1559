package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// OLM is the Operator Lifecycle Manager of a cluster.
type OLM struct {
	s        *Suite
	Programs binaries.Dir // olm, catalog, opm, cpb
}

// StartOLM runs the Operator Lifecycle Manager against the cluster, from outside, until the test ends.
// catalogArgs are added to those of its catalog operator.
func (s *Suite) StartOLM(t *testing.T, catalogArgs ...string) *OLM {
	t.Helper()
	built, err := binaries.EnsureOLM(t.Context(), binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	project, err := binaries.EnsureProject(t.Context(), binaries.Options{}, "olm", "github.com/operator-framework/operator-lifecycle-manager")
	require.NoError(t, err)
	o := &OLM{s, built}
	s.Kubectl(t, "create", "namespace", "olm")
	s.Kubectl(t, "apply", "--server-side", "-f", filepath.Join(project.Dir, "deploy/chart/crds"))
	require.Eventually(t, func() bool { // kubectl wait fails for a definition without conditions
		_, err := s.TryKubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
		return err == nil
	}, patience, 100*time.Millisecond, "the definitions are served")
	s.ApplyText(t, "apiVersion: operators.coreos.com/v1\nkind: OLMConfig\nmetadata: { name: cluster }\n")
	o.Run(t, built.Path("olm"), "--namespace", "olm")
	o.Run(t, built.Path("catalog"), append([]string{"--namespace", "olm"}, catalogArgs...)...)
	return o
}

// Run runs a program as a cluster administrator until the test ends.
func (o *OLM) Run(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(program)+".log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+o.s.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	var ended sync.WaitGroup
	ended.Go(func() { _ = cmd.Wait() })
	t.Cleanup(func() {
		ended.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("end of the log of %s:\n%s", filepath.Base(program), text[max(0, len(text)-8192):])
		}
		_ = log.Close()
	})
}
