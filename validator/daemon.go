package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/daemon"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/nodestatus"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/step"
	"github.com/gpuready/gpuready/validator/workload"
)

const daemonUsage = `Check the layers whenever what they depend on changes, and keep the proofs,
OUTPUT_DIR/<layer>-ready or <layer>-notready, up to date. They stay as they are
when the daemon ends.

With --node-name it also publishes the node's state: the Node gets the conditions
GPUReady and GPUHealthy, Events and labels of its GPUs, loses its startup taint
once GPUs can be used, and the plugin layer is proven by a pod that requests one; and the device
plugin gets the configuration that the Node chooses (nvidia.com/device-plugin.config).
That pod, and another that gets all GPUs once layer cuda is proven, stay until the
next validation: kubectl logs nvidia-driver-validation-<node>.
The proofs on the node do not depend on the API server.

Example:
  gpu-validator daemon --listen :9404
`

// reasonReplaced: the host has replaced a folder that is mounted in this container.
const reasonReplaced gpu.Reason = "FolderReplaced"

// reasonOutdated: the GPUs in this container are those of an earlier state of the node.
const reasonOutdated gpu.Reason = "InjectionOutdated"

// endTimeout bounds the time in which a process that was told to end sets the Node's conditions to
// Unknown.
const endTimeout = 2 * time.Second

// retireTimeout bounds the time in which a process that ends, to be created anew, publishes the
// reason.
const retireTimeout = 2 * time.Second

// cluster holds the flags about the API server.
type cluster struct {
	node, namespace, podName, podUID string
	image, server, account           string
	pullPolicy, runtimeClass         string
	pullSecrets                      []string
	pods                             bool
	withoutCUDA, withoutPlugin       bool // no workload of these layers is run
	taint                            nodestatus.Taint
	allocatable                      bool
	timeout                          time.Duration
}

func (c *cluster) addFlags(o *options) {
	f := o.flags
	f.StringVarP(&c.node, "node-name", o.short["node-name"], "", "name of this Node; empty: the API server is not used")
	f.StringVar(&c.namespace, "namespace", "", "namespace of this pod, for the pod that proves the plugin layer")
	f.StringVar(&c.podName, "pod-name", "", "name of this pod, the owner of that pod")
	f.StringVar(&c.podUID, "pod-uid", "", "UID of this pod")
	f.StringVar(&c.image, "workload-image", "", "image of that pod, the validator's own; empty: no pod, only what driver, plugin and kubelet report is compared")
	f.StringVar(&c.pullPolicy, "workload-image-pull-policy", string(corev1.PullIfNotPresent), "of that image: IfNotPresent, Always or Never")
	f.StringSliceVar(&c.pullSecrets, "workload-image-pull-secrets", nil, "names of Secrets of that namespace, to pull it with")
	f.StringVar(&c.runtimeClass, "workload-runtime-class", "", "RuntimeClass of that pod; empty: none")
	f.BoolVar(&c.pods, "validation-pods", true, "in a pod, with --workload-image: keep that pod when it has ended, for people to read, and run another that is given all GPUs, nvidia-driver-validation-<node>")
	f.DurationVar(&c.timeout, "workload-timeout", 2*time.Minute, "time limit of that pod, image pull included")
	f.StringSliceVar(&c.taint.Keys, "startup-taint", readiness.StartupTaints(), "keys of taints that are removed once the layers are proven or there is no GPU; empty: none")
	f.BoolVar(&c.taint.Manage, "startup-taint-manage", false, "put the first of them back (NoSchedule) when a layer is no longer proven")
	f.DurationVar(&c.taint.Settle, "startup-taint-settle", time.Minute, "how long a layer has to be refused before that")
	f.BoolVar(&c.allocatable, "report-allocatable", true, "write the devices that the kubelet can allocate into the Node's status at once, if it has none yet; false: wait for the kubelet's next status, up to 10 s")
	f.StringVar(&c.server, "api-server", "", "URL of the API server (default: that of this pod's cluster)")
	f.StringVar(&c.account, "service-account-dir", kube.ServiceAccountDir, "folder with token and ca.crt")
	maps.Copy(o.flags.Env, map[string]string{
		"node-name": "NODE_NAME", "namespace": "POD_NAMESPACE", "pod-name": "POD_NAME", "pod-uid": "POD_UID",
		"validation-pods": "VALIDATION_PODS", "report-allocatable": "REPORT_ALLOCATABLE",
		"workload-image": "VALIDATOR_IMAGE", "workload-timeout": "WORKLOAD_TIMEOUT",
		"workload-image-pull-policy": "VALIDATOR_IMAGE_PULL_POLICY", "workload-image-pull-secrets": "VALIDATOR_IMAGE_PULL_SECRETS",
		"workload-runtime-class": "VALIDATOR_RUNTIME_CLASS", "startup-taint": "STARTUP_TAINT",
		"startup-taint-manage": "STARTUP_TAINT_MANAGE", "startup-taint-settle": "STARTUP_TAINT_SETTLE",
		"api-server": "API_SERVER", "service-account-dir": "SERVICE_ACCOUNT_DIR",
	})
}

// workloads are the flags for the daemon's workloads.
type workloads struct{ all, cuda, plugin bool }

func (w *workloads) addFlags(o *options) {
	f := o.flags
	f.BoolVar(&w.all, "with-workload", true, "run vectorAdd for layer cuda, and a pod that runs it for layer plugin; false: prove what can be proven without")
	f.BoolVar(&w.cuda, "cuda-with-workload", true, "the same for layer cuda alone, where it is set; the pod nvidia-driver-validation goes with it")
	f.BoolVar(&w.plugin, "plugin-with-workload", true, "the same for layer plugin alone, where it is set")
	maps.Copy(o.flags.Env, map[string]string{"with-workload": "WITH_WORKLOAD", "cuda-with-workload": "CUDA_WITH_WORKLOAD", "plugin-with-workload": "PLUGIN_WITH_WORKLOAD"})
}

// complete sets those of single layers that are not set.
func (w *workloads) complete(o *options) {
	for flag, value := range map[string]*bool{"cuda-with-workload": &w.cuda, "plugin-with-workload": &w.plugin} {
		if !o.flags.Changed(flag) {
			*value = w.all
		}
	}
}

// note describes what the proofs lack, "" if nothing.
func (w *workloads) note() string {
	switch {
	case w.cuda && w.plugin:
		return ""
	case w.cuda:
		return "proven without a pod that requests a GPU " + step.WithoutWorkload
	case w.plugin:
		return "proven without computing on each GPU " + step.WithoutWorkload
	}
	return "proven without computing anything " + step.WithoutWorkload
}

func (c *cluster) check() error {
	switch {
	case c.image != "" && c.node != "" && c.namespace == "":
		return program.UsageErrorf("--workload-image needs --namespace, in which the pod is to run")
	case !slices.Contains([]corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullAlways, corev1.PullNever}, corev1.PullPolicy(c.pullPolicy)):
		return program.UsageErrorf("--workload-image-pull-policy %q: want IfNotPresent, Always or Never", c.pullPolicy)
	case c.timeout <= 0:
		return program.UsageErrorf("--workload-timeout must be positive")
	case c.taint.Settle < 0:
		return program.UsageErrorf("--startup-taint-settle must not be negative")
	case c.taint.Manage && len(c.taint.Keys) == 0:
		return program.UsageErrorf("--startup-taint-manage needs --startup-taint, the key of the taint")
	}
	return nil
}

func runDaemon(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := command("daemon", daemonUsage, stdout)
	var listen string
	var c cluster
	var w workloads
	o.flags.StringVar(&listen, "listen", ":9404", "address of /healthz, /readyz and /metrics; empty: none")
	o.bindEnv("listen", "LISTEN_ADDRESS")
	o.addPathFlags()
	o.addCheckFlags()
	c.addFlags(o)
	w.addFlags(o)
	o.addLogFlags()
	rest, err := o.parse(args)
	if err != nil {
		return err
	}
	w.complete(o)
	c.withoutCUDA, c.withoutPlugin = !w.cuda, !w.plugin
	if c.namespace == "" {
		c.namespace = os.Getenv("OPERATOR_NAMESPACE")
	}
	if len(rest) > 0 {
		return program.UsageErrorf("daemon takes no arguments, but was given %q", rest[0])
	}
	if err := c.check(); err != nil {
		return err
	}
	log, err := o.logger(stderr)
	if err != nil {
		return err
	}
	node, err := o.node()
	if err != nil {
		return err
	}
	defer func() { _ = node.Root.Close() }()
	log.Info("started", "version", version.String(), "path", o.outputDir)
	unserved := o.unfollowed(os.Environ(), c.namespace)
	for _, u := range unserved {
		log.Warn("setting has no effect", "setting", u.Name, "message", u.Message)
	}
	if note := w.note(); note != "" {
		log.Info("as configured, the layers are " + note)
	}

	registry := metricsserver.NewRegistry()
	status := kube.NewNodeStatus()
	node.Status, node.KeptProof = status.Last, o.keptProof(node)
	node.OwnPod = c.namespace + "/" + workload.PodName(workload.DevicePlugin, c.node)
	config := daemon.Config{Node: node, NodeChanged: status.Updates(), OutputDir: node.Root.Path(o.outputDir), Log: log, Metrics: daemon.NewMetrics(registry),
		Unserved: unserved, Note: w.note()}
	parts, err := c.parts(node, status, log, registry)
	if err != nil {
		return err
	}
	defer parts.close()
	config.Publish, config.WorkloadDone, config.Pipeline = parts.publish, parts.news, step.NewPipeline(probe.Read, parts.workload, o.asked)
	config.Pipeline = step.LeaveOutWorkload(config.Pipeline, c.withoutCUDA, c.withoutPlugin)
	config.DriverPod = parts.driverPod
	d := daemon.New(config)
	parts.watchNode(d.SetNodeLabels)

	daemonCtx := ctx // ends when the process is told to end
	group, ctx := errgroup.WithContext(daemonCtx)
	group.Go(func() error { return metricsserver.Serve(ctx, listen, registry, d.Ready) })
	group.Go(func() error { return d.Run(ctx) })
	group.Go(func() error { return watchOutdated(ctx, node, d, parts) })
	group.Go(func() error {
		return retireReplaced(ctx, d, parts, node.Root.Path(o.outputDir), node.Root.Path(node.StateDir), node.StatePath(nodestate.Validator),
			node.Root.Path(cdi.StaticDir), node.Root.Path(o.cdiDir), node.Root.Path(path.Dir(node.PodResources)))
	})
	for _, run := range parts.run {
		group.Go(func() error { return unlessCanceled(run(ctx)) })
	}
	switch err := group.Wait(); {
	case errors.Is(err, injection.ErrOutdated), errors.Is(err, mount.ErrReplaced):
		log.Info("ended", "message", err.Error())
		return nil
	case err != nil:
		return err
	}
	if parts.end != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(daemonCtx), endTimeout)
		defer cancel()
		if err := parts.end(ctx); err != nil {
			log.Warn("the Node's conditions could not be set to Unknown; they keep their last status, which nobody renews", "message", err.Error())
		}
	}
	log.Info("ended; the proofs stay in place")
	return nil
}

// watchOutdated waits until this container has to be created anew, and records the reason. The
// CUDA step runs on MIG instances, so it needs their current device nodes; not on those that are
// created for claims.
func watchOutdated(ctx context.Context, node check.Node, d *daemon.Daemon, p *parts) error {
	err := injection.Watch(ctx, node.StatePath(nodestate.Toolkit), node.BootID, node.Injection, func() injection.Extent {
		if step.PartitionsOnDemand(node) {
			return injection.Base
		}
		return injection.Whole
	})
	if !errors.Is(err, injection.ErrOutdated) {
		return unlessCanceled(err)
	}
	reason := reasonOutdated
	if node.Injection == injection.Expected {
		reason = check.ReasonInjection
	}
	retire(ctx, d, p, reason, err)
	return err
}

// retireReplaced waits until a folder of the host that is mounted in this container is replaced, and
// records that.
func retireReplaced(ctx context.Context, d *daemon.Daemon, p *parts, folders ...string) error {
	err := mount.WaitReplaced(ctx, folders...)
	if !errors.Is(err, mount.ErrReplaced) {
		return unlessCanceled(err)
	}
	retire(ctx, d, p, reasonReplaced, err)
	return err
}

// retire records why this container has to be created again.
func retire(ctx context.Context, d *daemon.Daemon, p *parts, reason gpu.Reason, why error) {
	d.Retire(reason, why.Error())
	if p.settled != nil {
		ctx, cancel := context.WithTimeout(ctx, retireTimeout)
		defer cancel()
		_ = p.settled(ctx) // the reason is on the node in any case
	}
}

func unlessCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// parts holds the parts of the daemon that use the API server.
type parts struct {
	publish   func(nodestatus.Facts)
	settled   func(context.Context) error
	workload  step.Workload
	driverPod daemon.DriverPod
	news      <-chan struct{}
	run       []func(context.Context) error
	watchNode func(deliver func(map[string]string) error) // delivers the Node's labels that select a configuration
	end       func(context.Context) error                 // sets the Node's conditions to Unknown; nil: the daemon writes no conditions
	close     func()
}

// parts builds the parts. It logs once if the API server cannot be used, which affects no proof
// on the node.
func (c *cluster) parts(node check.Node, status *kube.NodeStatus, log *slog.Logger, registry *prometheus.Registry) (*parts, error) {
	p := &parts{close: func() {}, watchNode: func(func(map[string]string) error) {}}
	if c.node == "" {
		return p, nil
	}
	config, err := kube.Config(c.server, c.account)
	if err != nil {
		log.Error("cannot use the API server: no conditions, Events, labels or validation pods are written, and the labels of the Node are not read; the proofs on the node do not depend on it", "message", err.Error())
		return p, nil
	}
	client, err := kube.New(config)
	if err != nil {
		return p, fmt.Errorf("the API server: %w", err)
	}
	p.close = client.Close
	publisher := nodestatus.New(nodestatus.Config{
		Client: client, Node: c.node, BootID: node.BootID, Dir: node.StatePath(nodestate.Validator), Taint: c.taint, Allocatable: c.allocatable,
		Log: log, Metrics: nodestatus.NewMetrics(registry),
	})
	p.publish, p.settled, p.end, p.run = publisher.Publish, publisher.Flush, publisher.WriteEnd, append(p.run, publisher.Run)
	p.watchNode = func(deliver func(map[string]string) error) {
		p.run = append(p.run, kube.NewNodeReader(kube.NodeReaderConfig{Client: client, Node: c.node, Deliver: deliver, Status: status.Set, Log: log}, registry).Run)
	}
	if c.image == "" {
		return p, nil
	}
	of := c.workload(client, node)
	if !c.withoutPlugin {
		w := workload.New(of, log, registry)
		p.workload, p.news, p.run = w, w.Updates(), append(p.run, w.Run)
	}
	switch {
	case !of.Keep, c.withoutCUDA:
	case node.Injection == "":
		log.Info("no pod nvidia-driver-validation is run: the toolkit (NRI) did not inject the GPUs into this container; no layer depends on it")
	default:
		shown := workload.NewDriverPod(of, log, registry)
		p.driverPod, p.run = shown, append(p.run, shown.Run)
	}
	return p, nil
}

// workload returns the configuration of the pods. They are kept only if they have an owner,
// with which they are deleted.
func (c *cluster) workload(client *kube.Client, node check.Node) workload.Config {
	return workload.Config{
		Client: client, Node: c.node, BootID: node.BootID, Namespace: c.namespace, Image: c.image, Timeout: c.timeout,
		PullPolicy: corev1.PullPolicy(c.pullPolicy), PullSecrets: c.pullSecrets, RuntimeClass: c.runtimeClass,
		OwnerName: c.podName, OwnerUID: c.podUID, Keep: c.pods && c.podName != "" && c.podUID != "",
		Allocated: func(ctx context.Context, pod string) ([]string, error) {
			kubelet, err := step.ReadKubelet(ctx, node.Root.Path(node.PodResources))
			return kubelet.Held(pod), err
		},
		InUse: func(ctx context.Context, driver check.Driver) string { return step.DescribeUse(ctx, node, driver) },
		FailedInUse: func(ctx context.Context, driver check.Driver, id gpu.UUID, code int) string {
			return step.DescribeUser(ctx, node, driver, id, code)
		},
		NodeRuntime: func() workload.NodeRuntime { return nodeRuntime(node) },
	}
}

// nodeRuntime returns what gives containers their devices, according to kubelet and toolkit.
func nodeRuntime(node check.Node) workload.NodeRuntime {
	known := workload.NodeRuntime{Kubelet: node.KnownStatus().Kubelet}
	if s, err := node.State(nodestate.Toolkit); err == nil && s.Toolkit != nil {
		known.Runtime = s.Toolkit.Runtime
	}
	return known
}

// runSample runs the hidden command of the validation pods.
func runSample(ctx context.Context, units []string, stdout, stderr io.Writer) error {
	code, err := workload.PodJob{
		Sample: findSample("vectoradd"), Units: units, MessagePath: workload.TerminationLog, Dev: workload.DevDir, Stdout: stdout, Stderr: stderr,
	}.Run(ctx)
	switch {
	case err != nil:
		return err
	case code != 0:
		return program.WithExitCode(code, fmt.Errorf("vectoradd ended with %d", code))
	}
	return nil
}
