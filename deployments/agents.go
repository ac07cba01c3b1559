// The DaemonSets of nodes with GPUs. The static manifests and the operator use the same templates, in
// the folder agents, so that both give identical nodes.

package deployments

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
	"sync"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/readiness"
)

//go:embed agents/*.tmpl
var agentFiles embed.FS

//go:embed agents/device-classes.yaml
var deviceClasses []byte

// DeviceClasses returns the DeviceClasses of the DRA driver, in YAML: one document each.
func DeviceClasses() [][]byte { return bytes.Split(deviceClasses, []byte("\n---\n")) }

// DeviceClassNames returns their names, to which the operator's rights are limited (files/rights.yaml of
// the chart). Whoever copies one has its labels, too, but not its name.
func DeviceClassNames() []string { return []string{"gpu.nvidia.com", "mig.nvidia.com"} }

// AgentData holds the parameters of an agent's DaemonSet.
type AgentData struct {
	Namespace  string
	Image      string // full reference, with its tag
	Privileged bool   // for runtimes without NRI: the agent mounts the host's root
	Runtime    bool   // of the toolkit: the container runtime may be configured and restarted
	// Validator is the validator's image. If it is set, the driver's pods end before they
	// load anything when the host has its own driver.
	Validator string
	// Parameters is an optional ConfigMap with parameters of the driver's modules.
	Parameters string
	// DriverToolkit adds a side-car that builds the driver's modules, OpenShift's Driver
	// Toolkit, with the image ToolkitImage. If OpenShift has no such image, there is no
	// side-car, and the driver container works without it.
	DriverToolkit bool
	ToolkitImage  string
}

// Agent describes one of the DaemonSets.
type Agent struct {
	Name  string // short name
	App   string // the DaemonSet's name and its pods' label app
	Image string // name of its image
}

// The agents.
var (
	Toolkit         = Agent{"toolkit", "nvidia-container-toolkit-daemonset", "toolkit"}
	DevicePlugin    = Agent{"device-plugin", "nvidia-device-plugin-daemonset", "device-plugin"}
	MPS             = Agent{"mps", "nvidia-device-plugin-mps-control-daemon", "device-plugin"}
	DRADriver       = Agent{"dra-driver", "gpu-dra-driver", "dra-driver"}
	Validator       = Agent{"validator", "nvidia-operator-validator", "validator"}
	Driver          = Agent{"driver", "nvidia-driver-daemonset", "driver"}
	DriverSimulator = Agent{"driver-simulator", "nvidia-driver-daemonset", "driver-simulator"}
)

// agents returns every agent.
func agents() []Agent {
	return []Agent{Toolkit, DevicePlugin, DRADriver, MPS, Validator, Driver, DriverSimulator}
}

// startupKeys returns the startup taints that the agents tolerate and the validator may
// change: ours, that of earlier versions, and one that a Cluster Autoscaler recognises
// by its prefix.
func startupKeys() []string {
	return append(readiness.StartupTaints(), "startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready")
}

// agentTerms returns the node selector terms of nodes that may have a GPU; any of them
// suffices.
func agentTerms() []string {
	labelled := func(label string) string {
		return fmt.Sprintf(`{ key: %s, operator: In, values: ["true"] }`, label)
	}
	return []string{
		labelled("feature.node.kubernetes.io/pci-10de.present"),
		labelled("feature.node.kubernetes.io/pci-0300_10de.present"),
		labelled("feature.node.kubernetes.io/pci-0302_10de.present"),
		labelled("nvidia.com/gpu.present"),
		"{ key: feature.node.kubernetes.io/kernel-version.full, operator: DoesNotExist }",
	}
}

// scalar returns a string as a YAML scalar, quoted if necessary.
func scalar(s string) (string, error) {
	text, err := yaml.Marshal(s)
	return strings.TrimSuffix(string(text), "\n"), err
}

// agentTemplates parses the templates of the agents once.
var agentTemplates = sync.OnceValues(func() (*template.Template, error) {
	return template.New("").Option("missingkey=error").
		Funcs(template.FuncMap{"terms": agentTerms, "startupKeys": startupKeys, "scalar": scalar}).ParseFS(agentFiles, "agents/*.tmpl")
})

// Render returns the agent's DaemonSet, in YAML. It fails only if the templates are broken.
func (a Agent) Render(d AgentData) ([]byte, error) {
	all, err := agentTemplates()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	data := struct {
		AgentData
		App string
	}{d, a.App}
	if err := all.ExecuteTemplate(&b, a.Name+".tmpl", data); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	return b.Bytes(), nil
}
