package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// podman runs podman, which has no daemon: each command is the whole runtime.
type podman struct{ image string }

// podmanFiles are the files of Debian's packages and of an administrator. A test's own files take
// precedence.
var podmanFiles = map[string]string{
	"/etc/containers/policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
	"/etc/containers/containers.conf": `[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
network_cmd_path = ""
[engine.runtimes]
runc = ["` + bin + `/runc"]
`,
}

func (p *podman) command() []string           { return nil }
func (p *podman) ready(context.Context) error { return nil }
func (p *podman) close() error                { return nil }

func (p *podman) execute(ctx context.Context, args ...string) (stdout string, err error) {
	self, err := filepath.EvalSymlinks(bin + "/podman")
	if err != nil {
		return "", err
	}
	usr := filepath.Dir(filepath.Dir(self))
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, bin+"/podman", args...)
	cmd.Env = append(environment(), "LD_LIBRARY_PATH="+strings.Join([]string{
		usr + "/lib/" + filepath.Base(LibraryDir()), filepath.Dir(usr) + "/lib/" + filepath.Base(LibraryDir()),
	}, ":"))
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("podman %s: %w\n%s%s", args[0], err, out.String(), stderr.String())
	}
	return out.String(), nil
}

func (p *podman) load(ctx context.Context, file string) error {
	out, err := p.execute(ctx, "load", "--input", file)
	if err != nil {
		return err
	}
	_, name, ok := strings.Cut(strings.TrimSpace(out), ": ")
	if !ok {
		return fmt.Errorf("podman load does not say what it loaded: %s", out)
	}
	if p.image = name; strings.HasPrefix(name, "sha256:") { // the archive's names are for containerd
		p.image = strings.TrimPrefix(name, "sha256:")
	}
	return nil
}

func (p *podman) run(ctx context.Context, s Spec) (string, error) {
	args := []string{"run", "--rm", "--network=host", "--cgroup-parent=/" + Name(), "--pull=never", "--entrypoint="}
	if s.Handler != "" {
		args = append([]string{"--runtime=" + s.Handler}, args...)
	}
	for _, kv := range s.Env {
		args = append(args, "--env="+kv)
	}
	for _, name := range s.CDI {
		args = append(args, "--device="+name)
	}
	return p.execute(ctx, append(append(args, p.image), s.Args...)...)
}

func (p *podman) status(ctx context.Context) (RuntimeStatus, error) {
	out, err := p.execute(ctx, "info", "--format=json")
	if err != nil {
		return RuntimeStatus{}, err
	}
	var info struct {
		Host    struct{ OCIRuntime struct{ Name string } }
		Version struct{ Version string }
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return RuntimeStatus{}, err
	}
	return RuntimeStatus{
		Version: info.Version.Version, Default: info.Host.OCIRuntime.Name, CDI: true,
		Handlers: []string{info.Host.OCIRuntime.Name},
	}, nil
}

// furnish writes the files that are not there yet.
func (p *podman) furnish() error {
	var errs []error
	for path, content := range podmanFiles {
		if _, err := os.Stat(path); err == nil {
			continue
		}
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
	}
	return errors.Join(errs...)
}

func (p *podman) begin(context.Context, Spec) error {
	return errors.New("podman has no daemon that a container could outlive")
}
