package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// profileKey matches the line of simulated-driver.yaml with the simulated profile.
var profileKey = regexp.MustCompile(`(?m)^( *GPUSIM_PROFILE:).*$`)

var validProfile = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// install returns the manifests for --profile: those that a user applies, with the name of the
// profile inserted. Without --profile there are none.
func (o options) install() (manifests []string, err error) {
	if o.profile == "" {
		return nil, nil
	}
	if !validProfile.MatchString(o.profile) {
		return nil, fmt.Errorf("--profile %q: gpusim profiles lists those that there are", o.profile)
	}
	for _, name := range []string{"gpuready.yaml", "simulated-driver.yaml"} {
		text, err := os.ReadFile(filepath.Join(o.manifests, name))
		if err != nil {
			return nil, fmt.Errorf("what --profile installs: %w; run this in a checkout of gpuready, or name the folder with --manifests", err)
		}
		manifests = append(manifests, string(text))
	}
	driver := &manifests[1]
	if !profileKey.MatchString(*driver) {
		return nil, fmt.Errorf("%s/simulated-driver.yaml has no line GPUSIM_PROFILE", o.manifests)
	}
	*driver = profileKey.ReplaceAllString(*driver, "${1} "+o.profile)
	return manifests, nil
}

// apply installs them.
func apply(ctx context.Context, o options, c *cluster.Cluster, kubectl string) error {
	manifests, err := o.install()
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig="+c.Kubeconfig, "apply", "-f", "-")
		cmd.Stdin, cmd.Stdout = strings.NewReader(manifest), os.Stderr
		var why strings.Builder
		cmd.Stderr = &why
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("install gpuready: kubectl apply: %w\n%s", err, why.String())
		}
	}
	return nil
}
