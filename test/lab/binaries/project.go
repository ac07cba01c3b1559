package binaries

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Project is the source of a project that a module's folder pins.
type Project struct {
	Dir     string // its files, read-only
	Version string
}

// EnsureProject returns the source of a project ("github.com/NVIDIA/gpu-operator") at the
// version that the module in a folder of this package pins, and downloads it if necessary. It is
// for charts, manifests and other files that are not programs.
func EnsureProject(ctx context.Context, o Options, folder, project string) (Project, error) {
	if err := o.complete(); err != nil {
		return Project{}, err
	}
	cmd := exec.CommandContext(ctx, o.Go, "mod", "download", "-json", project)
	cmd.Dir = filepath.Join(o.Source, folder)
	cmd.Env = buildEnviron("")
	out, err := cmd.Output()
	if err != nil {
		return Project{}, fmt.Errorf("download %s: %w: %s", project, err, out)
	}
	var p Project
	if err := json.Unmarshal(out, &p); err != nil {
		return Project{}, fmt.Errorf("download %s: %w", project, err)
	}
	return p, nil
}
