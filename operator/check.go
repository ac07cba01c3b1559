package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"text/tabwriter"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/api/schema"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/controller"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/state"
)

const checkUsage = `Tell what this operator makes of a ClusterPolicy that was written for NVIDIA's GPU Operator,
and of the NVIDIADrivers in the same files. It names what has no effect, and why, and
compares the images with those of a release of NVIDIA's. Nothing is contacted. The chart
makes a ClusterPolicy of Helm values; it names the values without effect in an annotation,
which is read, too.

Examples:
  gpu-operator check clusterpolicy.yaml
  kubectl get clusterpolicy -o yaml | gpu-operator check -
  gpu-operator check clusterpolicy.yaml --against 25.3 -o json
  helm get values -n gpu-operator gpu-operator -o yaml >values.yaml
  helm template gpuready gpuready.tgz -f values.yaml | gpu-operator check -

Exit codes:
  0   everything in the files is served
  1   a file is refused: nothing of it would be applied
  2   bad usage, or a file that cannot be read
  3   the files are accepted, and parts of them have no effect
`

// exitUnserved is the exit code for accepted files with parts that have no effect.
const exitUnserved = 3

// checkResult describes what follows from one object in a file.
type checkResult struct {
	File     string   `json:"file"`
	Kind     string   `json:"kind"`
	Name     string   `json:"name,omitempty"`
	Refused  []string `json:"refused,omitempty"`  // why it is not accepted
	Unserved []string `json:"unserved,omitempty"` // "FIELD: REASON"
	Problems []string `json:"problems,omitempty"` // parts that cannot be carried out
	// Operands are the DaemonSets on a node with Ubuntu 22.04, or on the nodes of --nodes.
	Operands []checkedOperand `json:"operands,omitempty"`
}

// checkedOperand is a DaemonSet beside its counterpart of NVIDIA's operator.
type checkedOperand struct {
	DaemonSet string   `json:"daemonSet"`
	Image     string   `json:"image"`
	NVIDIAs   string   `json:"nvidias,omitempty"` // the image that NVIDIA's release would use
	Env       []string `json:"env,omitempty"`     // variables of the file, NAME=VALUE
}

func check(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("check", checkUsage, stdout)
	var nodesFile, against, output string
	f := o.flags
	f.StringVar(&nodesFile, "nodes", "", "file with a List of Nodes; empty: one with a GPU, Ubuntu 22.04 and containerd 2")
	f.StringVar(&against, "against", "", "release of NVIDIA's GPU Operator to compare with, such as 25.3 (default: that of --nvidia-release)")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.BoolVar(&o.cluster.OpenShift, "openshift", false, "the cluster is OpenShift")
	maps.Copy(o.flags.Env, map[string]string{"nodes": "NODES", "against": "AGAINST", "output": "OUTPUT", "openshift": "OPENSHIFT"})
	o.addImageFlags()
	if err := o.parseWithFiles(args); err != nil {
		return err
	}
	files := f.Args()
	if len(files) == 0 {
		return program.UsageErrorf("check needs a file with a ClusterPolicy, or - for stdin")
	}
	release, err := nvidia.FindRelease(cmp.Or(against, o.nvidiaRelease))
	if err != nil {
		return program.UsageErrorf("--against: %w", err)
	}
	if output != "text" && output != "json" {
		return program.UsageErrorf("-o is %q: it must be text or json", output)
	}
	o.cluster.Namespace = "gpuready"
	nodes, err := readNodes(nodesFile)
	if err != nil {
		return program.WithExitCode(program.Usage, err)
	}
	c := checker{nodes: nodes, cluster: o.cluster, against: release}
	if c.schema, err = schema.Load(); err != nil {
		return err
	}
	if c.drivers, err = schema.LoadDriver(); err != nil {
		return err
	}
	contents := map[string][]byte{}
	for _, file := range files {
		if contents[file], err = readInput(file); err != nil {
			return program.WithExitCode(program.Usage, err)
		}
		c.file(file, contents[file]) // a policy may come before the NVIDIADrivers that it needs
	}
	found := c.found
	var all []checkResult
	for _, file := range files {
		c.found, c.used = nil, found
		found := c.file(file, contents[file])
		if len(found) == 0 {
			return program.WithExitCode(program.Usage, fmt.Errorf(
				"%s holds no ClusterPolicy; if it holds Helm values, have the chart make one: helm template gpuready gpuready.tgz -f %[1]s | gpu-operator check -", file))
		}
		all = append(all, found...)
	}
	if err := printChecks(stdout, all, output, release); err != nil {
		return err
	}
	return outcome(all)
}

// outcome returns the error with the exit code that fits; nil if everything is served.
func outcome(all []checkResult) error {
	var refused, unserved int
	for _, c := range all {
		refused += len(c.Refused)
		unserved += len(c.Unserved) + len(c.Problems)
	}
	switch {
	case refused > 0:
		return errors.New("a file is refused: see above")
	case unserved > 0:
		return program.WithExitCode(exitUnserved, fmt.Errorf("accepted; settings without effect or not carried out: %d, see above", unserved))
	}
	return nil
}

// checker checks objects for some nodes.
type checker struct {
	schema  *schema.Schema
	drivers *schema.Schema // of NVIDIADriver
	found   []*v1alpha1.NVIDIADriver
	used    []*v1alpha1.NVIDIADriver // by the policies
	nodes   []*fleet.Node
	cluster state.Cluster
	against nvidia.Release
}

// file checks the policies and NVIDIADrivers in a file: YAML documents, Lists among them.
func (c *checker) file(file string, data []byte) (all []checkResult) {
	for i, document := range splitDocuments(data) {
		source := file
		if i > 0 {
			source = fmt.Sprintf("%s (document %d)", file, i+1)
		}
		all = append(all, c.document(source, document)...)
	}
	return all
}

// splitDocuments splits YAML at its document separators and leaves out empty documents.
func splitDocuments(data []byte) (documents [][]byte) {
	for part := range bytes.SplitSeq(append([]byte("\n"), data...), []byte("\n---")) {
		if len(bytes.TrimSpace(part)) > 0 {
			documents = append(documents, bytes.TrimPrefix(part, []byte("\n")))
		}
	}
	return documents
}

func (c *checker) document(source string, data []byte) []checkResult {
	refused := func(why string) []checkResult {
		return []checkResult{{File: source, Kind: v1.Kind, Refused: []string{why}}}
	}
	if len(data) > config.MaxBytes {
		return refused(fmt.Sprintf("%d bytes are more than the %d that are read", len(data), config.MaxBytes))
	}
	var object struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		return refused(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	switch {
	case strings.HasSuffix(object.Kind, "List"):
		var all []checkResult
		for _, item := range object.Items {
			all = append(all, c.document(source, item)...)
		}
		return all
	case object.Kind == v1.Kind && strings.HasPrefix(object.APIVersion, v1.GroupVersion().Group+"/"):
		return []checkResult{c.policy(source, data)}
	case object.Kind == v1alpha1.Kind && strings.HasPrefix(object.APIVersion, v1alpha1.Group+"/"):
		return []checkResult{c.driver(source, data)}
	}
	return nil // another object, beside the policy
}

// driver checks an NVIDIADriver.
func (c *checker) driver(source string, data []byte) checkResult {
	out := checkResult{File: source, Kind: v1alpha1.Kind}
	d, err := c.drivers.AdmitDriver(context.Background(), data)
	if err != nil {
		out.Refused = []string{err.Error()}
		return out
	}
	c.found = append(c.found, d)
	out.Name, out.Unserved = d.Name, d.Unserved()
	return out
}

// policy checks a ClusterPolicy.
func (c *checker) policy(source string, data []byte) checkResult {
	out := checkResult{File: source, Kind: v1.Kind}
	var decoded v1.ClusterPolicy
	unknown, _ := config.Ignoring(data, &decoded, "") // Admit refuses what cannot be decoded
	out.Name = decoded.Name
	for _, key := range unknown {
		out.Refused = append(out.Refused, key.Error())
	}
	if len(unknown) > 0 {
		return out
	}
	policy, err := c.schema.Admit(context.Background(), data)
	if err != nil {
		out.Refused = []string{err.Error()}
		return out
	}
	c.fill(&out, policy)
	return out
}

// fill describes what follows from a policy.
func (c *checker) fill(out *checkResult, policy *v1.ClusterPolicy) {
	preview, err := controller.NewPreview(policy, c.nodes, c.cluster, false, c.used...)
	if err != nil {
		out.Refused = append(out.Refused, err.Error())
		return
	}
	out.Unserved = preview.Unserved
	for _, choice := range preview.Choices {
		if choice.Problem != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("driver: %s: %s", choice.Problem.Reason, choice.Problem.Message))
		}
	}
	for _, problem := range preview.Problems {
		out.Problems = append(out.Problems, fmt.Sprintf("%s: %s: %s", problem.State, problem.Reason, problem.Message))
	}
	for _, object := range preview.Objects {
		if set, is := object.Object.(*appsv1.DaemonSet); is {
			out.Operands = append(out.Operands, c.operand(set, &policy.Spec))
		}
	}
}

// counterpartFields are the fields of a policy by the beginning of the names of their DaemonSets,
// which NVIDIA's operator uses, too.
var counterpartFields = []struct{ daemonSet, field string }{
	{"nvidia-driver-daemonset", "driver"},
	{"nvidia-container-toolkit-daemonset", "toolkit"},
	{"nvidia-device-plugin-daemonset", "devicePlugin"},
	{"nvidia-dcgm-exporter", "dcgmExporter"},
	{"nvidia-dcgm", "dcgm"},
	{"nvidia-mig-manager", "migManager"},
}

// operand describes a DaemonSet.
func (c *checker) operand(set *appsv1.DaemonSet, spec *v1.ClusterPolicySpec) checkedOperand {
	operand := checkedOperand{DaemonSet: set.Name, Image: set.Spec.Template.Spec.Containers[0].Image}
	specs := map[string]v1.ContainerSpec{
		"driver": spec.Driver.ContainerSpec, "toolkit": spec.Toolkit.ContainerSpec, "devicePlugin": spec.DevicePlugin.ContainerSpec,
		"dcgm": spec.DCGM.ContainerSpec, "dcgmExporter": spec.DCGMExporter.ContainerSpec, "migManager": spec.MIGManager.ContainerSpec,
	}
	for _, counterpart := range counterpartFields {
		if !strings.HasPrefix(set.Name, counterpart.daemonSet) {
			continue
		}
		if counterpart.field == "driver" && spec.Driver.UsesNVIDIADrivers() {
			break // NVIDIA's release has no default for it
		}
		own := specs[counterpart.field]
		operand.NVIDIAs = own.Ref(driver.NVIDIAImages(c.against, "")[counterpart.field])
		for _, env := range own.Env {
			operand.Env = append(operand.Env, env.Name+"="+env.Value)
		}
		break
	}
	return operand
}

// printChecks prints checks for people or programs.
func printChecks(w io.Writer, all []checkResult, output string, against nvidia.Release) error {
	if output == "json" {
		data, err := json.MarshalIndent(map[string]any{"against": against.Name, "checks": all}, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", data)
		return err
	}
	var b strings.Builder
	for i, c := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		printCheck(&b, c, against)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxPrinted bounds each text of a checked file that is printed, in bytes.
const maxPrinted = 1000

func printCheck(b *strings.Builder, c checkResult, against nvidia.Release) {
	verdict := "everything is served"
	switch {
	case len(c.Refused) > 0:
		verdict = "refused"
	case len(c.Unserved)+len(c.Problems) > 0:
		verdict = "accepted"
	}
	fmt.Fprintf(b, "%s: %s: %s\n", c.File, record.Clean(strings.TrimSpace(c.Kind+" "+c.Name), maxPrinted), verdict)
	for _, list := range []struct {
		title string
		lines []string
	}{{"Refused", c.Refused}, {"Not carried out", c.Problems}, {"Without effect", c.Unserved}} {
		if len(list.lines) > 0 {
			fmt.Fprintf(b, "\n%s:\n", list.title)
		}
		for _, line := range list.lines {
			fmt.Fprintf(b, "  %s\n", record.Clean(line, maxPrinted))
		}
	}
	if len(c.Operands) == 0 {
		return
	}
	b.WriteByte('\n')
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "  DAEMONSET\tIMAGE\tWITH NVIDIA'S %s\n", against.Name)
	for _, operand := range c.Operands {
		theirs := operand.NVIDIAs
		// The tags of drivers end with the kernel and the operating system.
		if theirs != "" && (theirs == operand.Image || strings.HasPrefix(operand.Image, theirs+"-")) {
			theirs = "the same"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\n", record.Clean(operand.DaemonSet, maxPrinted), record.Clean(operand.Image, maxPrinted), record.Clean(cmp.Or(theirs, "-"), maxPrinted))
	}
	_ = table.Flush()
}

// maxInput bounds a file in bytes.
const maxInput = 16 << 20

// readInput reads a file, or stdin for "-".
func readInput(file string) ([]byte, error) {
	from := os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, maxInput+1))
	if err == nil && len(data) > maxInput {
		err = fmt.Errorf("%s: more than %d bytes", file, maxInput)
	}
	return data, err
}
