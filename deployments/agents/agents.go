// Package agents has the DaemonSets that run on nodes with GPUs: what a user applies
// from deployments/static and what the operator makes of a ClusterPolicy are rendered
// from the same templates, so that a node cannot tell the one from the other.
package agents

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
	"sync"
	"text/template"

	"sigs.k8s.io/yaml"
)

//go:embed parts
var parts embed.FS

// Data is what a DaemonSet is rendered with.
type Data struct {
	Namespace  string
	Image      string // whole, with its tag
	Privileged bool   // for runtimes without NRI: the agent sees the host's root
	Runtime    bool   // of the toolkit: the container runtime may be configured and started anew
	// Validator is the validator's image. With it, the driver's pods end before they load
	// anything where the host has a driver of its own.
	Validator string
	// Parameters is a ConfigMap with parameters of the driver's modules, which need not exist.
	Parameters string
	// DriverToolkit has the driver's modules built by a side-car, OpenShift's Driver Toolkit.
	// Its image is ToolkitImage, or OpenShift has none: then there is no side-car, and the
	// driver container makes do without it.
	DriverToolkit bool
	ToolkitImage  string
}

// Agent is one of the DaemonSets.
type Agent struct {
	Name  string // what it is called here
	App   string // the DaemonSet's name and its pods' label app
	Image string // the name of the image that it runs
}

// The agents.
var (
	Toolkit         = Agent{"toolkit", "nvidia-container-toolkit-daemonset", "toolkit"}
	DevicePlugin    = Agent{"device-plugin", "nvidia-device-plugin-daemonset", "device-plugin"}
	MPS             = Agent{"mps", "nvidia-device-plugin-mps-control-daemon", "device-plugin"}
	Validator       = Agent{"validator", "nvidia-operator-validator", "validator"}
	Driver          = Agent{"driver", "nvidia-driver-daemonset", "driver"}
	DriverSimulator = Agent{"driver-simulator", "nvidia-driver-daemonset", "driver-simulator"}
)

// All returns every agent.
func All() []Agent {
	return []Agent{Toolkit, DevicePlugin, MPS, Validator, Driver, DriverSimulator}
}

// StartupKeys are the startup taints that the agents tolerate and the validator may
// touch: ours, that of earlier versions, and one that a Cluster Autoscaler knows by
// its prefix.
func StartupKeys() []string {
	return []string{"nvidia.com/gpu-not-ready", "gpuready.io/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"}
}

// terms are the ways in which a node may have a GPU: any of them will do.
func terms() []string {
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

// scalar is a string as YAML has it: in quotes where it would be something else.
func scalar(s string) (string, error) {
	text, err := yaml.Marshal(s)
	return strings.TrimSuffix(string(text), "\n"), err
}

// templates are those beside this file, read once.
var templates = sync.OnceValues(func() (*template.Template, error) {
	return template.New("").Option("missingkey=error").
		Funcs(template.FuncMap{"terms": terms, "startupKeys": StartupKeys, "scalar": scalar}).ParseFS(parts, "parts/*.tmpl")
})

// Render returns the agent's DaemonSet, in YAML. It fails where the templates are broken.
func Render(a Agent, d Data) ([]byte, error) {
	all, err := templates()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	data := struct {
		Data
		App string
	}{d, a.App}
	if err := all.ExecuteTemplate(&b, a.Name+".tmpl", data); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	return b.Bytes(), nil
}
