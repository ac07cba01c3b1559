package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/measure"
	"github.com/gpuready/gpuready/provision/observe"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

const measureUsage = `Request GPUs repeatedly and record when each step was reached.

Tests:
  reset            delete the ClusterPolicy, wait until nothing is left, apply it again
  autoscale        create a workload that fits on no node, and wait for a new node
  scale-from-zero  the same, starting with no node that offers GPUs
  node-reboot      restart a node by a command, and wait until it runs workloads again

Each sample ends when the nodes are validated, if a validator runs, and the workload has
shown its first result. The first sample is shown but not counted. Ctrl-C ends the run: the
report is then marked as partial, and the cluster is restored.

Usage:
  gpu-provision measure --test TEST [flags]

Examples:
  gpu-provision measure --test reset --samples 10 --out run
  gpu-provision measure --test autoscale --samples 5              # Cluster Autoscaler, Karpenter
  gpu-provision measure --test autoscale --machineset openshift-machine-api/gpu-a
  gpu-provision measure --test scale-from-zero --node-claim claim.yaml      # Karpenter
  gpu-provision measure --test scale-from-zero --add-node 'cloud create gpu' \
    --remove-node 'cloud delete $GPU_PROVISION_NODE'
  gpu-provision measure --test node-reboot --node gpu-1 --reboot 'ssh gpu-1 sudo systemctl reboot'

docs/time-to-gpu.md lists the RBAC rules that it needs.

`

// measureOptions holds the flags of measure.
type measureOptions struct {
	where                    cluster.Options
	test, stack, notice      string
	samples, drop, nodes     int
	timeout                  time.Duration
	resource                 string
	selectors                []string
	policy, node, reboot     string
	addNode, removeNode      string
	machineSet, nodeClaim    string
	keepNodes                bool
	workload, image          string
	namespace, result        string
	noWorkload, notValidated bool
	out, appendTo, output    string
	format, level            string
}

func (m *measureOptions) newFlags(stdout io.Writer) *program.Flags {
	f := program.NewFlags("gpu-provision measure", measureUsage, exitCodes, stdout)
	f.StringVar(&m.test, "test", "", "reset, autoscale, scale-from-zero or node-reboot")
	f.IntVar(&m.samples, "samples", 10, "how many samples count")
	f.IntVar(&m.drop, "drop", 1, "how many warm-up samples precede them and do not count")
	f.DurationVar(&m.timeout, "timeout", 20*time.Minute, "limit for one sample, and for its preparation")
	f.StringVar(&m.stack, "stack", "", "name of the GPU stack in reports (default: from its images)")
	f.StringVar(&m.notice, "notice", "", "first line of every output: what was simulated")
	f.StringVar(&m.resource, "resource", "nvidia.com/gpu", "resource that the device plugin advertises")
	f.StringArrayVar(&m.selectors, "selector", nil, "pods of the driver, toolkit, plugin or validator: OPERAND=LABEL-SELECTOR (default: those of gpuready and of NVIDIA's operator and charts)")
	f.StringVar(&m.policy, "policy", "", "reset: which ClusterPolicy (default: the only one)")
	f.StringVar(&m.node, "node", "", "node-reboot: which node")
	f.StringVar(&m.reboot, "reboot", "", "node-reboot: the command that restarts it")
	f.IntVar(&m.nodes, "workloads", 1, "autoscale, scale-from-zero: how many workload pods are created at once")
	f.StringVar(&m.addNode, "add-node", "", "autoscale, scale-from-zero: a command that adds a node")
	f.StringVar(&m.removeNode, "remove-node", "", "autoscale, scale-from-zero: a command that removes $GPU_PROVISION_NODE")
	f.StringVar(&m.machineSet, "machineset", "", "autoscale, scale-from-zero: scale this MachineSet, NAMESPACE/NAME")
	f.StringVar(&m.nodeClaim, "node-claim", "", "autoscale, scale-from-zero: create the Karpenter NodeClaim of this file")
	f.BoolVar(&m.keepNodes, "keep-nodes", false, "autoscale, scale-from-zero: do not wait until nodes are gone")
	f.StringVar(&m.image, "workload-image", measure.DefaultImage(), "an image whose own command computes on one GPU and ends with 0")
	f.StringVar(&m.workload, "workload", "", "a file with a Pod to run instead of --workload-image")
	f.BoolVar(&m.noWorkload, "no-workload", false, "reset, node-reboot: measure until GPUs are allocatable and validated")
	f.StringVarP(&m.namespace, "namespace", "n", "", "namespace of the workload (default: that of the kubeconfig's context)")
	f.StringVar(&m.result, "result", "", "a regular expression: the first result is the line of the workload's log that it matches (default: its container ends with 0)")
	f.BoolVar(&m.notValidated, "no-validation", false, "do not wait until nodes are validated")
	f.StringVar(&m.out, "out", "", "a folder for report.json, report.csv, report.svg and report.html")
	f.StringVar(&m.appendTo, "append", "", "add the samples to this report.json, or create it; to alternate between two stacks")
	f.StringVarP(&m.output, "output", "o", "text", "format on standard output: text, json, csv, svg or html")
	clusterFlags(f, &m.where)
	f.AddLogFormat(&m.format)
	f.AddLogLevel(&m.level)
	return f
}

func runMeasure(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	m := &measureOptions{}
	f := m.newFlags(stdout)
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	session, test, rep, err := m.newSession(stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilHangup(ctx)
	defer stop()
	defer session.Client.Close()
	if err := m.readVersion(ctx, session, rep); err != nil {
		return err
	}
	before := len(rep.Samples)
	failed := measure.Run(ctx, session, test, rep)
	if rep.Stack == "" {
		rep.Stack = stackOf(rep.Images)
	}
	if failed != nil && rep.Ended == "" {
		rep.Ended = strings.ReplaceAll(failed.Error(), "\n", "; ")
	}
	if nothing := before == 0 && failed != nil && ctx.Err() == nil && !slices.ContainsFunc(rep.Samples, func(s report.Sample) bool { return len(s.Timelines) > 0 }); nothing {
		return failed // it never began
	}
	written := m.writeFiles(rep)
	if err := errors.Join(written, writeReport(stdout, rep, m.outputFormat(rep))); err != nil {
		return errors.Join(failed, err)
	}
	complete := func(s report.Sample) bool { return s.Outcome == report.Complete }
	switch {
	case failed != nil:
		return program.WithExitCode(exitPartial, failed)
	case !slices.ContainsFunc(rep.Samples[before:], complete):
		return program.WithExitCode(exitPartial, errors.New("no sample is complete; see the report for the reason"))
	}
	return nil
}

// untilHangup also ends the context when the terminal goes away: the cluster has to be restored.
func untilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) { // nohup
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// outputFormat returns the format for standard output: a picture needs a counted sample.
func (m *measureOptions) outputFormat(rep *report.Report) string {
	if m.output == "svg" && len(rep.Counted()) == 0 {
		return "text"
	}
	return m.output
}

// newSession checks the flags, and returns the session, test and report that they describe.
func (m *measureOptions) newSession(stderr io.Writer) (*measure.Session, measure.Scenario, *report.Report, error) {
	fail := func(err error) (*measure.Session, measure.Scenario, *report.Report, error) { return nil, nil, nil, err }
	if err := checkOutput(m.output, "text", "json", "csv", "svg", "html"); err != nil {
		return fail(err)
	}
	if min(m.samples, m.drop) < 0 || m.samples+m.drop < 1 || m.nodes < 1 || m.timeout <= 0 {
		return fail(program.UsageErrorf("--samples and --drop must not be negative nor both 0, --workloads must be at least 1 and --timeout above 0"))
	}
	selectors := step.DefaultSelectors()
	for _, text := range m.selectors {
		if err := selectors.Set(text); err != nil {
			return fail(program.UsageErrorf("--selector %w", err))
		}
	}
	test, err := m.chooseTest()
	if err != nil {
		return fail(err)
	}
	workload, err := m.chooseWorkload()
	if err != nil {
		return fail(err)
	}
	log, err := program.NewLog(stderr, "provision", m.format, m.level)
	if err != nil {
		return fail(err)
	}
	rep, err := m.loadReport()
	if err != nil {
		return fail(err)
	}
	client, err := connectCluster(m.where)
	if err != nil {
		return fail(err)
	}
	watching, err := connectCluster(m.where)
	if err != nil {
		return fail(err)
	}
	workload.Namespace = firstNonEmpty(m.namespace, client.Namespace)
	clock := observe.SystemClock()
	return &measure.Session{
		Client: client, Observer: observe.New(watching, selectors, clock), Clock: clock, Log: log,
		Run: fmt.Sprintf("%08x", uint32(time.Now().UnixNano()/1e6)), // distinguishes the pods of earlier runs
		Options: measure.Options{
			Samples: m.samples, WarmUps: m.drop, Timeout: m.timeout, Resource: resourceName(m.resource),
			Selectors: selectors, Workload: workload, Validated: !m.notValidated,
		},
	}, test, rep, nil
}

// loadReport reads the report of --append, or returns a new one.
func (m *measureOptions) loadReport() (*report.Report, error) {
	fresh := &report.Report{Schema: report.Schema, Notice: m.notice, Stack: m.stack, Test: m.test, Tool: version.String(), Began: time.Now().UTC(), Samples: []report.Sample{}}
	if m.out != "" {
		if err := os.MkdirAll(m.out, 0o755); err != nil {
			return nil, err
		}
	}
	if m.appendTo == "" {
		return fresh, nil
	}
	if m.stack == "" {
		return nil, program.UsageErrorf("--append needs --stack, the stack of the samples in the file")
	}
	// Check now that the folder is writable: at the end it would be too late.
	probe, err := os.CreateTemp(filepath.Dir(m.appendTo), ".gpu-provision-*")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, err
	}
	old, err := readReport(m.appendTo)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fresh, nil
	case err != nil:
		return nil, err
	case old.Test != m.test || old.Stack != m.stack:
		return nil, program.UsageErrorf("--append %s: it has samples of test %s with %s, which must not be mixed with these", m.appendTo, old.Test, old.Stack)
	}
	if len(old.Samples) > 0 {
		m.drop = 0 // the first was dropped already
	}
	old.Ended, old.Notice = "", firstNonEmpty(m.notice, old.Notice)
	return old, nil
}

// readVersion reads the version of the API server.
func (m *measureOptions) readVersion(ctx context.Context, s *measure.Session, rep *report.Report) error {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := s.Client.Get(ctx, "/version", nil, &v); err != nil {
		return fmt.Errorf("read the version of the API server: %w", err)
	}
	rep.Cluster.Version = v.GitVersion
	return nil
}

// writeFiles writes the requested files.
func (m *measureOptions) writeFiles(rep *report.Report) error {
	files := map[string]string{}
	if m.appendTo != "" {
		files[m.appendTo] = "json"
	}
	if m.out != "" {
		for _, ext := range []string{"json", "csv", "svg", "html"} {
			if ext != "svg" || len(rep.Counted()) > 0 {
				files[filepath.Join(m.out, "report."+ext)] = ext
			}
		}
	}
	for path, ext := range files {
		if err := writeFile(path, 0o644, func(w io.Writer) error { return writeReport(w, rep, ext) }); err != nil {
			return err
		}
	}
	return nil
}

// stackOf returns an image that identifies the stack.
func stackOf(images map[step.Operand][]string) string {
	for _, operand := range []step.Operand{step.Plugin, step.Validator, step.Toolkit} {
		if len(images[operand]) > 0 {
			return images[operand][0]
		}
	}
	return "unknown stack"
}

func firstNonEmpty(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func compilePattern(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil //nolint:nilnil // without a pattern there is no expression
	}
	line, err := regexp.Compile(pattern)
	if err != nil {
		return nil, program.UsageErrorf("--result: %w", err)
	}
	return line, nil
}
