package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/suggest"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/daemon"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/step"
	"github.com/gpuready/gpuready/validator/workload"
)

const componentUsage = `Prove one layer as the nvidia-validator of NVIDIA's GPU Operator does, by the
same names, flags and environment, and leave the same file, OUTPUT_DIR/<component>-ready,
for programs that wait for it. The program name nvidia-validator does the same. It is
for pods written for that program, instead of the daemon and not beside it.

With --with-wait it waits until the layer is proven. It checks not every few seconds but when
something has changed, and each new reason is printed once. The list below says which
settings are ignored or refused; docs/validator.md has the other differences.

Examples:
  COMPONENT=driver WITH_WAIT=true nvidia-validator
  gpu-validator component --component nvidia-fs
`

// layerOf is the layer for a component of the reference, and a reason for which a refused
// layer still counts as proven.
type layerOf struct {
	layer  readiness.Layer
	enough gpu.Reason
}

var componentsOf = map[string]layerOf{
	"driver": {layer: readiness.Driver}, "toolkit": {layer: readiness.Toolkit}, "cuda": {layer: readiness.CUDA}, "plugin": {layer: readiness.Plugin},
	"nvidia-peermem": {layer: readiness.Peermem}, "nvidia-fs": {layer: readiness.GDS}, "gdrcopy": {layer: readiness.GDRCopy},
	"mofed": {layer: readiness.MOFED}, "vfio-pci": {layer: readiness.VFIO}, "vgpu-devices": {layer: readiness.VGPU},
	// The component that creates the devices waits for the manager.
	"vgpu-manager": {layer: readiness.VGPU, enough: step.ReasonVGPUDevices},
}

const componentMetrics = "metrics"

// hostMount is the path of the host's root in the reference's pods.
const hostMount = "/host"

type componentFlags struct {
	name                                              string
	wait, workload, cleanup, skipValidation, skipInit bool
	port, sleep                                       int
	strategy, workloadConfig, installDir, installPath string
	noDevChar                                         bool
	kubeconfig                                        string
	timeout                                           time.Duration
}

func (c *componentFlags) addFlags(o *options) {
	f := o.flags
	f.StringVarP(&c.name, "component", "c", "", "the component to prove: "+strings.Join(componentNames(), ", "))
	f.BoolVarP(&c.wait, "with-wait", "w", false, "wait until the layer is proven")
	f.BoolVarP(&c.workload, "with-workload", "l", true, "run vectorAdd for cuda, and a pod that runs it for plugin")
	f.BoolVarP(&c.cleanup, "cleanup-all", "r", false, "first remove the files of all components from the folder; other files stay")
	f.IntVarP(&c.port, "metrics-port", "p", 0, "with metrics: the port")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "for plugin; empty: as the pod's service account")
	f.DurationVar(&c.timeout, "timeout", 0, "time limit of the whole run; 0: none with --with-wait, else ten minutes")
	f.IntVarP(&c.sleep, "sleep-interval-seconds", "s", 5, "ignored: the program waits for changes instead of sleeping")
	f.StringVarP(&c.strategy, "mig-strategy", "m", "single", "ignored: the resources that the device plugin offers are used")
	f.StringVarP(&c.workloadConfig, "default-gpu-workload-config", "g", "", "ignored: the named component is checked")
	f.StringVar(&c.installDir, "driver-install-dir", "", "a driver container's root, on the host; ignored if --driver-root is given")
	f.StringVar(&c.installPath, "driver-install-dir-ctr-path", "", "ignored: the root is searched below --host-root")
	f.BoolVar(&c.noDevChar, "disable-dev-char-symlink-creation", false, "ignored: links are checked, never created")
	f.BoolVar(&c.skipInit, "driver-validation-skip-gpu-init", false, "refused: a driver is not proven without its GPUs")
	f.BoolVar(&c.skipValidation, "skip-validation", false, "refused: nothing is written that was not proven")
	maps.Copy(o.flags.Env, map[string]string{
		"component": "COMPONENT", "with-wait": "WITH_WAIT", "with-workload": "WITH_WORKLOAD", "cleanup-all": "CLEANUP_ALL",
		"metrics-port": "METRICS_PORT", "kubeconfig": "KUBECONFIG", "timeout": "TIMEOUT", "sleep-interval-seconds": "SLEEP_INTERVAL_SECONDS",
		"mig-strategy": "MIG_STRATEGY", "default-gpu-workload-config": "DEFAULT_GPU_WORKLOAD_CONFIG",
		"driver-install-dir": "DRIVER_INSTALL_DIR", "driver-install-dir-ctr-path": "DRIVER_INSTALL_DIR_CTR_PATH",
		"disable-dev-char-symlink-creation": "DISABLE_DEV_CHAR_SYMLINK_CREATION",
		"driver-validation-skip-gpu-init":   "DRIVER_VALIDATION_SKIP_GPU_INIT", "skip-validation": "SKIP_VALIDATION",
	})
}

func componentNames() []string {
	return append(slices.Sorted(maps.Keys(componentsOf)), componentMetrics)
}

func (c *componentFlags) check(api cluster) error {
	_, known := componentsOf[c.name]
	switch {
	case c.name == "cc-manager":
		return program.UsageErrorf("the component cc-manager is not proven here: the confidential computing manager says by itself, in the Node's label nvidia.com/cc.ready.state, whether it is ready")
	case !known && c.name != componentMetrics:
		return program.UsageErrorf("unknown component %q%s", c.name, suggest.Hint(c.name, componentNames()))
	case c.skipValidation:
		return program.UsageErrorf("--skip-validation: nothing is written that was not proven; leave the component out")
	case c.skipInit:
		return program.UsageErrorf("--driver-validation-skip-gpu-init: a driver that is not asked for its GPUs is not proven; for GPUs of virtual machines there is the component vfio-pci")
	case c.name == componentMetrics && c.port == 0:
		return program.UsageErrorf("the component metrics needs --metrics-port")
	case c.name == string(readiness.Plugin) && c.workload && (api.node == "" || api.namespace == "" || api.image == ""):
		return program.UsageErrorf("the component plugin runs a pod: it needs NODE_NAME, OPERATOR_NAMESPACE and VALIDATOR_IMAGE, or WITH_WORKLOAD=false")
	case c.timeout < 0 || c.port < 0 || c.port > 65535:
		return program.UsageErrorf("--timeout and --metrics-port: out of range")
	}
	return nil
}

func component(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := command("component", componentUsage, stdout)
	var c componentFlags
	var api cluster
	o.short = map[string]string{"output-dir": "o", "node-name": "n"}
	c.addFlags(o)
	o.addPathFlags()
	o.addCheckFlags()
	o.addLogFlags()
	api.addFlags(o)
	o.flags.Env["namespace"] = "OPERATOR_NAMESPACE"
	for _, none := range []string{"startup-taint", "startup-taint-manage", "startup-taint-settle", "validation-pods", "report-allocatable"} {
		_ = o.flags.MarkHidden(none)
	}
	rest, err := o.parse(args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return program.UsageErrorf("component takes no arguments; did you mean --component %s?", rest[0])
	}
	if api.namespace == "" {
		api.namespace = os.Getenv("POD_NAMESPACE")
	}
	if err := errors.Join(c.check(api), api.check()); err != nil {
		return err
	}
	if o.hostRoot == "/" && isDir(hostMount+"/usr") {
		o.hostRoot = hostMount
	}
	if o.driverRoot == "" && c.installDir != "" && isDir(filepath.Join(o.hostRoot, c.installDir)) {
		o.driverRoot = c.installDir
	}
	if c.cleanup {
		if err := daemon.NewProofWriter(o.outputDir, "").RemoveAll(); err != nil {
			return err
		}
	}
	if c.name == componentMetrics {
		node, err := o.node()
		if err != nil {
			return err
		}
		defer func() { _ = node.Root.Close() }()
		return barriers(ctx, c.port, o.outputDir, node.BootID, api.node)
	}
	return c.proveLayer(ctx, o, api, stderr)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// proveLayer builds the pipeline for the component and runs it.
func (c *componentFlags) proveLayer(ctx context.Context, o *options, api cluster, stderr io.Writer) error {
	timeout := c.timeout
	if timeout == 0 && !c.wait {
		timeout = 10 * time.Minute
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%v are over", timeout))
		defer cancel()
	}
	node, err := o.node()
	if err != nil {
		return err
	}
	defer func() { _ = node.Root.Close() }()
	node.KeptProof = filepath.Join(o.outputDir, step.KeptProofName)
	of := componentsOf[c.name]
	s := &standin{componentFlags: c, layerOf: of, node: node, proofs: daemon.NewProofWriter(o.outputDir, node.BootID), out: &lines{w: stderr}}
	r := step.NewPipeline(probe.Read, nil, []readiness.Layer{of.layer})
	group, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	if of.layer == readiness.Plugin && c.workload {
		log, err := o.logger(stderr)
		if err != nil {
			stop()
			return err
		}
		client, err := api.client(c.kubeconfig)
		if err != nil {
			stop()
			return fmt.Errorf("the API server: %w", err)
		}
		defer client.Close()
		of := api.workload(client, node)
		of.Keep = false // no later process would replace the pod
		runner := workload.New(of, log, metricsserver.NewRegistry())
		r, s.news = step.NewPipeline(probe.Read, runner, nil), runner.Updates()
		group.Go(func() error { return unlessCanceled(runner.Run(ctx)) })
	}
	r.Steps = slices.DeleteFunc(r.Steps, func(s check.Step) bool { return s.Layer != of.layer })
	for i := range r.Steps {
		// The layer is checked alone, so it builds on the driver only.
		if r.Steps[i].Basis == check.OnAll {
			r.Steps[i].Basis = check.OnDriver
		}
	}
	s.pipeline = r
	group.Go(func() error {
		defer stop()
		return s.run(ctx)
	})
	return group.Wait()
}

// client returns a client of the API server, configured as the reference's.
func (c *cluster) client(kubeconfig string) (*kube.Client, error) {
	if kubeconfig != "" {
		config, err := kube.Kubeconfig(kubeconfig, "")
		if err != nil {
			return nil, err
		}
		return kube.New(config)
	}
	config, err := kube.Config(c.server, c.account)
	if err != nil {
		return nil, err
	}
	return kube.New(config)
}
