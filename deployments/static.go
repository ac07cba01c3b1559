// The static manifests: gpuready.yaml, gpuready-privileged.yaml and the like have most of their
// content in common, so they are generated from static/parts and checked in. What a user
// applies is a plain file.

package deployments

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/gpuready/gpuready/internal/version"
)

//go:embed static/parts
var parts embed.FS

// manifest describes a file generated from parts.
type manifest struct {
	name       string
	about      string
	parts      []string
	privileged bool // for runtimes without NRI
	runtime    bool // the container runtime may be configured and restarted
}

var manifests = []manifest{
	{
		name: "gpuready.yaml",
		about: `gpuready: toolkit, device plugin, validator. For a runtime with NRI: containerd 2.0
or newer, CRI-O 1.28 or newer. See docs/install.md.`,
		parts: []string{"namespace.tmpl", "toolkit.tmpl", "device-plugin.tmpl", "rights.yaml", "policy.yaml", "validator.tmpl"},
	},
	{
		name: "gpuready-privileged.yaml",
		about: `gpuready for a runtime without NRI: as gpuready.yaml, but the device plugin and the
validator are privileged and mount the host's root, because nothing injects the GPUs.
See docs/install.md.`,
		parts:      []string{"namespace.tmpl", "toolkit.tmpl", "device-plugin.tmpl", "rights.yaml", "policy.yaml", "validator.tmpl"},
		privileged: true,
	},
	{
		name: "gpuready-privileged-runtime.yaml",
		about: `gpuready for a runtime that must be configured, such as containerd 1.7, which has CDI off:
as gpuready-privileged.yaml, but the toolkit changes the runtime's configuration, restarts
it once, and verifies that it accepted the change; otherwise it reverts everything. See
docs/toolkit.md; gpu-toolkit plan on a node prints beforehand what would be changed.`,
		parts:      []string{"namespace.tmpl", "toolkit.tmpl", "device-plugin.tmpl", "rights.yaml", "policy.yaml", "validator.tmpl"},
		privileged: true, runtime: true,
	},
	{
		name: "device-plugin.yaml",
		about: `The device plugin alone, for nodes whose host runs gpu-toolkit as a service, with
--namespace=gpuready. See docs/install.md.`,
		parts: []string{"namespace.tmpl", "device-plugin.tmpl"},
	},
	{
		name: "dra-driver.yaml",
		about: `The DRA driver: the GPUs as ResourceSlices, and pods with ResourceClaims. Kubernetes 1.34 or
newer. Apply it after gpuready.yaml, and let the device plugin register nothing:
kubectl -n gpuready set env daemonset/nvidia-device-plugin-daemonset GPU_SERVE=dra
See docs/dra.md.`,
		parts: []string{"dra-driver.tmpl"},
	},
	{
		name: "mps.yaml",
		about: `MPS control daemons, for nodes whose device plugin shares GPUs by MPS: apply it after
one of the others, which creates the namespace; deleting this one keeps it. See
docs/configuration.md, "Sharing by MPS".`,
		parts: []string{"mps.tmpl"},
	},
	{
		name: "driver.yaml",
		about: `The driver container, for nodes whose host has no driver: kernel modules and user space
of an NVIDIA driver, from an image of yours. In place of gpuready/driver, which holds no
driver, name an image made from it that has the modules for the kernel of every node;
docs/driver.md has its layout. Apply it after gpuready.yaml, and not beside
simulated-driver.yaml, whose DaemonSet has the same name. An image that has sources and a
compiler builds modules that it lacks, and keeps them in /var/lib/gpuready/driver. No image
is chosen by a node's kernel, and no node is drained: a driver that is in use stays until
nobody uses it. The operator does both: docs/operator.md.`,
		parts: []string{"driver.tmpl"},
	},
	{
		name: "simulated-driver.yaml",
		about: `A simulated driver as the driver of a cluster without GPUs: device nodes, libraries
and GPUs that respond, compute slowly, and fail on request. Apply it after
gpuready.yaml. What is proven on it says SIMULATED. See docs/install.md.`,
		parts: []string{"driver-simulator.tmpl"},
	},
}

// Agent returns the DaemonSet of the agent with that name.
func (m manifest) Agent(name string) (string, error) {
	for _, a := range agents() {
		if a.Name == name {
			yaml, err := a.Render(AgentData{
				Namespace: "gpuready", Image: "gpuready/" + a.Image + ":" + version.Release(),
				Privileged: m.privileged, Runtime: m.runtime,
				Validator: "gpuready/" + Validator.Image + ":" + version.Release(), Parameters: "gpuready-driver-parameters",
			})
			return strings.TrimSuffix(string(yaml), "\n"), err
		}
	}
	return "", fmt.Errorf("there is no agent %q", name)
}

// DeviceClasses returns the DeviceClasses of the DRA driver.
func (manifest) DeviceClasses() string { return string(deviceClasses) }

// templates returns the parts, and the chart's templates of rights and policies.
func templates() (*template.Template, error) {
	all := template.New("")
	include := func(name string, data any) (string, error) {
		var b strings.Builder
		err := all.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}
	if _, err := all.Funcs(template.FuncMap{"include": include}).ParseFS(parts, "static/parts/*.tmpl"); err != nil {
		return nil, err
	}
	chart := "helm/gpuready/templates/"
	return all.ParseFS(chartTemplates, chart+"_generated.tpl", chart+"agents/rights.yaml", chart+"agents/policy.yaml", chart+"agents/dra-driver.yaml")
}

// renderManifests returns the static manifests by file name.
func renderManifests() (map[string]string, error) {
	all, err := templates()
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, m := range manifests {
		var b bytes.Buffer
		for line := range bytes.Lines([]byte(m.about + "\n")) {
			fmt.Fprintf(&b, "# %s", line)
		}
		b.WriteString("#\n# Made of deployments/static/parts and deployments/agents by `make generate`.\n")
		for _, part := range m.parts {
			b.WriteString("---\n")
			if err := all.ExecuteTemplate(&b, part, m); err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
		}
		files[m.name] = b.String()
	}
	return files, nil
}
