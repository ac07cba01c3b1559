package nvidia

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// theirs is NVIDIA's stack.
type theirs struct {
	*Built
	settings Settings
}

// NVIDIA returns NVIDIA's stack.
func (b *Built) NVIDIA(s Settings) Stack { return &theirs{b, s} }

func (*theirs) Name() string      { return "nvidia" }
func (*theirs) Namespace() string { return "gpu-operator" }

// render renders their chart. Beside images and what cannot be had, its values are its
// defaults.
func (s *theirs) render(ctx context.Context) (manifests []string, err error) {
	from := s.settings.repository()
	values := append([]string{
		"operator.repository=" + from, "operator.image=gpu-operator", "operator.version=" + operatorVersion,
		"validator.repository=" + from, "validator.image=gpu-operator-validator", "validator.version=" + operatorVersion,
		"driver.manager.repository=" + from, "driver.manager.image=k8s-driver-manager", "driver.manager.version=" + driverManager,
		"devicePlugin.repository=" + from, "devicePlugin.image=k8s-device-plugin", "devicePlugin.version=" + s.plugin.Version,
		"gfd.repository=" + from, "gfd.image=k8s-device-plugin", "gfd.version=" + s.plugin.Version,
		"toolkit.repository=" + from, "toolkit.image=container-toolkit", "toolkit.version=" + s.toolkit.Version,
	}, s.settings.driver()...)
	args := append([]string{"template", "gpu-operator", filepath.Join(s.operator.Dir, "deployments/gpu-operator"), "--namespace", s.Namespace(), "--include-crds",
		// NFD is there already, as on most clusters.
		"--set", "nfd.enabled=false",
		// These have no module: no images of them can be had.
		"--set", "dcgmExporter.enabled=false", "--set", "migManager.enabled=false",
	}, set(values)...)
	out, err := s.helm(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	return documents.Split(out, -1), nil
}

var (
	documents = regexp.MustCompile(`(?m)^---\n`)
	isPolicy  = regexp.MustCompile(`(?m)^kind: ClusterPolicy$`)
)

func (s *theirs) Policy(ctx context.Context) (string, error) {
	manifests, err := s.render(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range manifests {
		if isPolicy.MatchString(m) {
			return m, nil
		}
	}
	return "", fmt.Errorf("their chart renders no ClusterPolicy")
}

// others holds the manifests of the chart without the policy. Manifests that name no
// namespace mean the release's.
func (s *theirs) others(ctx context.Context) (string, error) {
	manifests, err := s.render(ctx)
	if err != nil {
		return "", err
	}
	var kept []string
	for _, m := range manifests {
		if !isPolicy.MatchString(m) {
			kept = append(kept, m)
		}
	}
	return strings.Join(kept, "---\n"), nil
}

func (s *theirs) Install(ctx context.Context, c *cluster.Cluster) error {
	manifests, err := s.others(ctx)
	if err != nil {
		return err
	}
	if err := s.Apply(ctx, c, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+s.Namespace()+"}\n"); err != nil {
		return err
	}
	if _, err := s.run(ctx, c, manifests, s.kubectl, "-n", s.Namespace(), "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, c, "wait", "--for=condition=Established", "--timeout=60s", "crd/clusterpolicies.nvidia.com"); err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, c, "-n", s.Namespace(), "rollout", "status", "deployment/gpu-operator", "--timeout=120s")
	return err
}

func (s *theirs) Remove(ctx context.Context, c *cluster.Cluster) error {
	if _, err := s.Kubectl(ctx, c, "delete", "clusterpolicies.nvidia.com", "--all", "--ignore-not-found", "--timeout=120s"); err != nil {
		return err
	}
	manifests, err := s.others(ctx)
	if err != nil {
		return err
	}
	if _, err := s.run(ctx, c, manifests, s.kubectl, "-n", s.Namespace(), "delete", "--ignore-not-found", "--timeout=120s", "-f", "-"); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, c, "delete", "runtimeclass", "--all", "--timeout=60s"); err != nil {
		return err
	}
	return s.bare(ctx, c, s.Namespace(), s.settings.Registry)
}
