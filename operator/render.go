package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/api/schema"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/controller"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/registry"
)

const renderUsage = `Print the objects that the operator would create for a policy and some nodes, as YAML. On
stderr, print the driver of each pool of nodes and the problems of the policy. NVIDIADrivers
are read from the same file, as further documents.
It contacts neither a cluster nor a registry: it assumes that every image exists, and that
driver images are NVIDIA's unless --own-driver is set. The API server's defaults are not
applied.

Examples:
  kubectl get nodes -o yaml >nodes.yaml
  gpu-operator render --policy clusterpolicy.yaml --nodes nodes.yaml
  gpu-operator render --policy clusterpolicy.yaml --own-driver
`

func render(_ context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("render", renderUsage, stdout)
	var policyFile, nodesFile string
	var own bool
	f := o.flags
	f.StringVar(&policyFile, "policy", "", "file with the ClusterPolicy, and with NVIDIADrivers if it needs them")
	f.StringVar(&nodesFile, "nodes", "", "file with a List of Nodes; empty: one with a GPU, Ubuntu 22.04 and containerd 2")
	f.BoolVar(&o.cluster.OpenShift, "openshift", false, "the cluster is OpenShift")
	f.BoolVar(&o.cluster.HandOver, "hand-over", false, "NVIDIA's operator runs in the cluster")
	f.BoolVar(&own, "own-driver", false, "driver images are driver containers of gpuready (label "+registry.Label+"), those of NVIDIA's registry excepted")
	maps.Copy(o.flags.Env, map[string]string{"policy": "POLICY", "nodes": "NODES", "openshift": "OPENSHIFT", "hand-over": "HAND_OVER", "own-driver": "OWN_DRIVER"})
	o.addNamespaceFlags()
	o.addImageFlags()
	if err := o.parse(args); err != nil {
		return err
	}
	if policyFile == "" {
		return program.UsageErrorf("render needs --policy, a file with a ClusterPolicy")
	}
	if o.cluster.Namespace == "" {
		o.cluster.Namespace = "gpuready"
	}
	policy, drivers, err := readPolicy(policyFile)
	if err != nil {
		return program.WithExitCode(program.Usage, err)
	}
	nodes, err := readNodes(nodesFile)
	if err != nil {
		return program.WithExitCode(program.Usage, err)
	}
	p, err := controller.NewPreview(policy, nodes, o.cluster, own, drivers...)
	if err != nil {
		return err
	}
	for _, c := range p.Choices {
		fmt.Fprintf(stderr, "# pool %s: driver %s %s\n", c.Pool, c.Variant, c.Image)
		if c.Problem != nil {
			fmt.Fprintf(stderr, "# pool %s: %s: %s\n", c.Pool, c.Problem.Reason, c.Problem.Message)
		}
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(stderr, "# %s: %s: %s\n", problem.State, problem.Reason, problem.Message)
	}
	for _, line := range p.Unserved {
		fmt.Fprintf(stderr, "# unserved: %s\n", line)
	}
	for _, object := range p.Objects {
		data, err := yaml.Marshal(object.Object)
		if err != nil {
			return fmt.Errorf("%s: %w", object.Object.GetName(), err)
		}
		fmt.Fprintf(stdout, "---\n%s", data)
	}
	return nil
}

// readPolicy reads a ClusterPolicy and NVIDIADrivers from the documents of a file.
func readPolicy(file string) (policy *v1.ClusterPolicy, drivers []*v1alpha1.NVIDIADriver, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("--policy: %w", err)
	}
	admit, err := schema.LoadDriver()
	if err != nil {
		return nil, nil, err
	}
	for _, document := range splitDocuments(data) {
		var is struct{ Kind string }
		if yaml.Unmarshal(document, &is) == nil && is.Kind == v1alpha1.Kind {
			d, err := admit.AdmitDriver(context.Background(), document)
			if err != nil {
				return nil, nil, fmt.Errorf("--policy %s: NVIDIADriver: %w", file, err)
			}
			drivers = append(drivers, d)
			continue
		}
		if policy != nil {
			return nil, nil, fmt.Errorf("--policy %s: it must hold one ClusterPolicy, and NVIDIADrivers", file)
		}
		policy = &v1.ClusterPolicy{}
		if err := config.Strict(document, policy, file); err != nil {
			return nil, nil, err
		}
	}
	if policy == nil {
		return nil, nil, fmt.Errorf("--policy %s: it holds no ClusterPolicy", file)
	}
	return policy, drivers, nil
}

// readNodes reads a List of Nodes; without a file it returns the sample.
func readNodes(file string) ([]*fleet.Node, error) {
	list := corev1.NodeList{Items: []corev1.Node{sampleNode()}}
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--nodes: %w", err)
		}
		list = corev1.NodeList{}
		if err := yaml.Unmarshal(data, &list); err != nil {
			return nil, fmt.Errorf("--nodes %s: %w", file, err)
		}
	}
	var nodes []*fleet.Node
	for i := range list.Items {
		nodes = append(nodes, fleet.Observe(&list.Items[i]))
	}
	return nodes, nil
}
