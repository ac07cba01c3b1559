package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/provision/measure"
)

func resourceName(name string) corev1.ResourceName { return corev1.ResourceName(name) }

// chooseTest returns the test that the flags name. It rejects flags of other tests.
func (m *measureOptions) chooseTest() (measure.Scenario, error) {
	for _, f := range []struct {
		name  string
		set   bool
		tests string
	}{
		{"--policy", m.policy != "", "reset"},
		{"--node", m.node != "", "node-reboot"},
		{"--reboot", m.reboot != "", "node-reboot"},
		{"--add-node", m.addNode != "", "autoscale scale-from-zero"},
		{"--remove-node", m.removeNode != "", "autoscale scale-from-zero"},
		{"--machineset", m.machineSet != "", "autoscale scale-from-zero"},
		{"--node-claim", m.nodeClaim != "", "autoscale scale-from-zero"},
		{"--keep-nodes", m.keepNodes, "autoscale scale-from-zero"},
		{"--workloads", m.nodes != 1, "autoscale scale-from-zero"},
		{"--no-workload", m.noWorkload, "reset node-reboot"},
	} {
		if f.set && m.test != "" && !strings.Contains(" "+f.tests+" ", " "+m.test+" ") {
			return nil, program.UsageErrorf("%s is for --test %s", f.name, strings.ReplaceAll(f.tests, " ", " or "))
		}
	}
	switch m.test {
	case "reset":
		return &measure.Reset{Name: m.policy, SavePolicy: m.savePolicy}, nil
	case "autoscale", "scale-from-zero":
		provider, err := m.chooseProvider()
		return &measure.Scale{Provider: provider, FromZero: m.test == "scale-from-zero", KeepNodes: m.keepNodes}, err
	case "node-reboot":
		if m.node == "" || m.reboot == "" {
			return nil, program.UsageErrorf("--test node-reboot needs --node and --reboot")
		}
		return &measure.Reboot{Node: m.node, Command: measure.Command(m.reboot)}, nil
	case "":
		return nil, program.UsageErrorf("--test is missing: it must be reset, autoscale, scale-from-zero or node-reboot")
	}
	return nil, program.UsageErrorf("--test %q: it must be reset, autoscale, scale-from-zero or node-reboot", m.test)
}

func (m *measureOptions) chooseProvider() (measure.Provider, error) {
	var given []string
	for name, set := range map[string]bool{"--add-node": m.addNode != "", "--machineset": m.machineSet != "", "--node-claim": m.nodeClaim != ""} {
		if set {
			given = append(given, name)
		}
	}
	if len(given) > 1 {
		return nil, program.UsageErrorf("--add-node, --machineset and --node-claim are three ways to add a node; give one")
	}
	switch {
	case m.addNode != "" || m.removeNode != "":
		if m.addNode == "" {
			return nil, program.UsageErrorf("--remove-node needs --add-node; an autoscaler removes its nodes itself")
		}
		return measure.Commands{AddNode: measure.Command(m.addNode), RemoveNode: measure.Command(m.removeNode)}, nil
	case m.machineSet != "":
		namespace, name, found := strings.Cut(m.machineSet, "/")
		if !found || namespace == "" || name == "" {
			return nil, program.UsageErrorf("--machineset %q: want NAMESPACE/NAME", m.machineSet)
		}
		return &measure.MachineSet{Namespace: namespace, Name: name}, nil
	case m.nodeClaim != "":
		manifest := map[string]any{}
		if err := readManifest(m.nodeClaim, &manifest); err != nil {
			return nil, program.UsageErrorf("--node-claim: %w", err)
		}
		claim, err := measure.NewNodeClaim(manifest)
		if err != nil {
			return nil, program.UsageErrorf("--node-claim %s: %w", m.nodeClaim, err)
		}
		return claim, nil
	}
	return measure.Autoscaler{}, nil
}

// chooseWorkload returns the workload that the flags describe.
func (m *measureOptions) chooseWorkload() (measure.Workload, error) {
	w := measure.Workload{}
	line, err := compilePattern(m.result)
	if err != nil {
		return w, err
	}
	w.Result = line
	if m.test == "autoscale" || m.test == "scale-from-zero" {
		w.Count = m.nodes
	}
	switch {
	case m.noWorkload && m.workload != "":
		return w, program.UsageErrorf("--no-workload and --workload exclude each other")
	case m.noWorkload:
		return w, nil
	case m.workload == "":
		w.Pod = measure.NewWorkload(m.image, resourceName(m.resource))
		return w, nil
	}
	w.Pod = &corev1.Pod{}
	if err := readManifest(m.workload, w.Pod); err != nil {
		return w, program.UsageErrorf("--workload: %w", err)
	}
	if w.Pod.Kind != "Pod" || len(w.Pod.Spec.Containers) == 0 {
		return w, program.UsageErrorf("--workload %s: want a Pod with a container, not kind %q", m.workload, w.Pod.Kind)
	}
	if m.namespace == "" {
		m.namespace = w.Pod.Namespace
	}
	return w, nil
}

// readManifest reads one object from YAML or JSON, strictly.
func readManifest(path string, into any) error {
	const most = 1 << 20
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > most {
		return fmt.Errorf("%s is larger than 1 MiB", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		return fmt.Errorf("%s: %s", path, strings.TrimSpace(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: json: ")))
	}
	return nil
}

// savePolicy saves the ClusterPolicy to a file for manual recovery.
func (m *measureOptions) savePolicy(manifest []byte) (string, error) {
	dir := m.out
	if dir == "" {
		dir = "."
	}
	path := filepath.Join(dir, "gpu-provision-clusterpolicy.json")
	if err := writeFile(path, 0o600, func(w io.Writer) error {
		_, err := w.Write(append(manifest, '\n'))
		return err
	}); err != nil {
		return "", err
	}
	return filepath.Abs(path)
}
