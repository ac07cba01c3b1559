package nvidia

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// ours is this tree's stack.
type ours struct {
	*Built
	settings Settings
}

// GPUReady returns our stack, with NVIDIA's driver container.
func (b *Built) GPUReady(s Settings) Stack { return &ours{b, s} }

func (*ours) Name() string      { return "gpuready" }
func (*ours) Namespace() string { return "gpuready-system" }

// values are the chart's defaults but for the driver, as in NVIDIA's chart. A simulated
// driver has to be allowed.
func (s *ours) values() []string {
	values := append([]string{"--namespace", s.Namespace(), "--set", "nfd.enabled=false",
		"--set", "validator.env[0].name=ALLOW_SIMULATED", "--set-string", "validator.env[0].value=true"}, set(s.settings.driver())...)
	if r := s.settings.Registry; r != nil {
		values = append(values, "--set", "global.registry="+r.Host, "--set", "operator.insecureRegistries={"+r.Host+"}")
	}
	return values
}

func (s *ours) chart() (string, error) {
	found, err := filepath.Glob(filepath.Join(s.bin, "charts/gpuready-*.tgz"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("there is no chart in %s: run make chart: %w", filepath.Join(s.bin, "charts"), err)
	}
	return found[0], nil
}

func (s *ours) Install(ctx context.Context, c *cluster.Cluster) error {
	chart, err := s.chart()
	if err != nil {
		return err
	}
	args := append([]string{"install", "gpuready", chart, "--create-namespace", "--wait", "--timeout", "3m", "--set", "clusterPolicy.create=false"}, s.values()...)
	_, err = s.helm(ctx, c, args...)
	return err
}

func (s *ours) Policy(ctx context.Context) (string, error) {
	chart, err := s.chart()
	if err != nil {
		return "", err
	}
	return s.helm(ctx, nil, append([]string{"template", "gpuready", chart, "--show-only", "templates/clusterpolicy.yaml"}, s.values()...)...)
}

func (s *ours) Remove(ctx context.Context, c *cluster.Cluster) error {
	if _, err := s.Kubectl(ctx, c, "delete", "clusterpolicies.nvidia.com", "--all", "--ignore-not-found", "--timeout=120s"); err != nil {
		return err
	}
	if _, err := s.helm(ctx, c, "uninstall", "gpuready", "--namespace", s.Namespace(), "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, c, "delete", "crd", "clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com", "--ignore-not-found", "--timeout=60s"); err != nil {
		return err
	}
	return s.bare(ctx, c, s.Namespace(), s.settings.Registry)
}
