package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Source returns the folder of the source of the test cluster's Kubernetes, and its
// version. It downloads the source if it is missing.
func Source(ctx context.Context) (dir, version string, err error) {
	return Module(ctx, "test/lab/binaries/kubernetes", "k8s.io/kubernetes")
}

// Module returns the folder and version of a module that the module in a folder of the
// checkout pins. It downloads the module if it is missing.
func Module(ctx context.Context, folder, module string) (dir, version string, err error) {
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", "", fmt.Errorf("git rev-parse: %w; run this inside the checkout", err)
	}
	pins := filepath.Join(strings.TrimSpace(string(root)), folder)
	for _, args := range [][]string{{"list", "-m", "-json"}, {"mod", "download", "-json"}} {
		cmd := exec.CommandContext(ctx, "go", append(args, module)...)
		cmd.Dir = pins
		out, err := cmd.Output()
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return "", "", fmt.Errorf("%s in %s: %w\n%s", cmd, pins, err, failed.Stderr)
		}
		if err != nil {
			return "", "", fmt.Errorf("%s in %s: %w", cmd, pins, err)
		}
		var m struct{ Dir, Version string }
		if err := json.Unmarshal(out, &m); err != nil {
			return "", "", fmt.Errorf("%s: %w", cmd, err)
		}
		if m.Dir != "" {
			return m.Dir, m.Version, nil
		}
	}
	return "", "", fmt.Errorf("go mod download of %s in %s named no folder", module, pins)
}
