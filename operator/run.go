package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/operator/controller"
	"github.com/gpuready/gpuready/operator/evict"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/leader"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/registry"
	"github.com/gpuready/gpuready/operator/upgrade"
)

const runUsage = `Watch the cluster, and deploy on each GPU node what the ClusterPolicy requires.

It writes labels of Nodes, DaemonSets in the operands' namespace and the policy's status.
All its state is in the cluster, so that it may be stopped at any time.

Examples:
  gpu-operator run --kubeconfig ~/.kube/config --namespace gpuready --leader-elect=false
  gpu-operator run --image-repository registry.example/gpuready --registry-ca /etc/ca
`

// endDeadline bounds the operator's shutdown.
const endDeadline = 5 * time.Second

type runFlags struct {
	listen     string
	lead       bool
	pod        leader.Pod
	registryCA []string
	insecure   []string
}

func (r *runFlags) flags(o *options) {
	f := o.flags
	o.addNamespaceFlags()
	o.addImageFlags()
	f.StringVar(&r.listen, "listen", ":9406", "address of /healthz, /readyz and /metrics; empty: none")
	f.BoolVar(&r.lead, "leader-elect", true, "act only while holding the Lease kube-system/gpu-operator.gpuready.io")
	f.StringVar(&r.pod.Name, "pod-name", "", "name of this pod, so that its next container can lead before the Lease expires")
	f.StringVar(&r.pod.UID, "pod-uid", "", "UID of that pod")
	f.StringSliceVar(&r.registryCA, "registry-ca", nil, "folders with certificates of authorities that registries are trusted by, beside the system's")
	f.StringSliceVar(&r.insecure, "insecure-registries", nil, "registries, as host or host:port, that may be asked without TLS")
	maps.Copy(o.flags.Env, map[string]string{
		"listen": "LISTEN_ADDRESS", "leader-elect": "LEADER_ELECT", "pod-name": "POD_NAME", "pod-uid": "POD_UID",
		"registry-ca": "REGISTRY_CA", "insecure-registries": "INSECURE_REGISTRIES",
	})
	o.addAPIFlags()
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("run", runUsage, stdout)
	var r runFlags
	r.flags(o)
	if err := o.parse(args); err != nil {
		return err
	}
	if o.namespace == "" {
		return program.UsageErrorf("run needs --namespace, the operator's own ($POD_NAMESPACE)")
	}
	log, err := o.logger(stderr)
	if err != nil {
		return err
	}
	kube, err := o.restConfig()
	if err != nil {
		return err
	}
	// Most of the memory is a cache of the cluster, which every garbage collection scans.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	limitMemory(0, 0)
	reg := metricsserver.NewRegistry()
	m := metrics.New(reg)
	kube.Wrap(m.Transport)
	log.Info("started", "version", version.String(), "namespace", o.cluster.Namespace)
	elector, err := newElector(kube, o, r.pod, m, log)
	if err != nil {
		return err
	}
	if r.lead {
		kube.Wrap(elector.Gate.Wrap)
	}
	mgr, err := newManager(kube, o, log)
	if err != nil {
		return err
	}
	others, err := newOtherCaches(kube, mgr)
	if err != nil {
		return err
	}
	registries, err := registry.New(registry.Options{Insecure: r.insecure, CADirs: r.registryCA, Agent: kube.UserAgent})
	if err != nil {
		return program.UsageErrorf("--registry-ca: %w", err)
	}
	direct, err := client.NewWithWatch(kube, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return err
	}
	remover, err := evict.NewRequests(kube, mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	c := controller.New(controller.Config{
		Client: mgr.GetClient(), Informers: mgr.GetCache(), Others: others, Events: mgr.GetEventRecorder(label.Deployment),
		Metrics: m, Cluster: o.cluster, Now: time.Now, Log: log, Sized: limitMemory,
		Operator: types.NamespacedName{Namespace: o.namespace, Name: label.Deployment}, Elected: r.lead,
		Streams: func(failed func(error)) (cache.Cache, error) { return openCache(kube, mgr, controller.Streams(failed)) },
		Monitors: func(failed func(error)) (cache.Cache, error) {
			return openCache(kube, mgr, controller.Monitors(o.cluster.Namespace, failed))
		},
		Slices:  func(failed func(error)) (cache.Cache, error) { return openCache(kube, mgr, controller.Slices(failed)) },
		Drivers: func(failed func(error)) (cache.Cache, error) { return openCache(kube, mgr, controller.Drivers(failed)) },
		Registry: func(changed func(string)) controller.Registry {
			return registry.NewCache(controller.NewLookup(registries, direct, o.cluster.Namespace, m), changed)
		},
		Evictor: func(changed func(), recordEvent func(*corev1.Node, upgrade.Event)) controller.Evictor {
			return evict.New(evict.Options{Client: direct, Namespaces: []string{o.cluster.Namespace, o.namespace}, Remover: remover, Changed: changed, RecordEvent: recordEvent})
		},
	})
	if err := mgr.Add(c); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(ctx, r.listen, reg, c.Ready) })
	work := func(ctx context.Context) error {
		if err := mgr.Start(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		return errors.New("the manager has stopped unexpectedly")
	}
	group.Go(func() error {
		if !r.lead {
			return work(ctx)
		}
		return elector.Run(ctx, work)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("ended; the operands stay as they are")
	return nil
}

// openCache opens a cache beside the manager's.
func openCache(kube *rest.Config, mgr manager.Manager, options cache.Options) (cache.Cache, error) {
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	return cache.New(kube, options)
}

func newManager(kube *rest.Config, o *options, log *slog.Logger) (manager.Manager, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, err
	}
	end := endDeadline
	return manager.New(kube, manager.Options{
		Scheme: scheme, Logger: logr.FromSlogHandler(log.Handler()),
		Cache:   controller.Caches(o.cluster.Namespace),
		Metrics: ctrlmetrics.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		GracefulShutdownTimeout: &end,
	})
}

// newCache returns a cache beside a manager's own.
func newCache(kube *rest.Config, mgr manager.Manager, options cache.Options) (cache.Cache, error) {
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	return cache.New(kube, options)
}

// newOtherCaches returns the cache of this product's Deployments. The manager starts it together
// with its own.
func newOtherCaches(kube *rest.Config, mgr manager.Manager) (cache.Cache, error) {
	others, err := newCache(kube, mgr, controller.OtherCaches())
	if err != nil {
		return nil, err
	}
	return others, mgr.Add(managedCache{others})
}

// managedCache is a cache that a manager starts before everything that uses caches.
type managedCache struct{ cache.Cache }

// GetCache tells the manager that it is a cache.
func (c managedCache) GetCache() cache.Cache { return c.Cache }

// newElector returns the Elector that decides whether this operator acts. Its own requests do not
// pass its Gate.
func newElector(kube *rest.Config, o *options, pod leader.Pod, m *metrics.Metrics, log *slog.Logger) (*leader.Elector, error) {
	if (pod.Name == "") != (pod.UID == "") {
		return nil, program.UsageErrorf("--pod-name %q and --pod-uid %q: set both, or neither", pod.Name, pod.UID)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host, for the Lease: %w", err)
	}
	scheme, err := leader.Scheme()
	if err != nil {
		return nil, err
	}
	direct, err := client.New(rest.CopyConfig(kube), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return leader.New(leader.Options{
		Client: direct, Namespace: o.namespace, Deployment: label.Deployment, FormerDeployment: label.NVIDIADeployment, Pod: pod, Host: host + "_" + string(uuid.NewUUID()),
		Report: func(s leader.Status) { m.SetLeadership(s.Leads, s.StandsDownFor) }, Log: log,
	}), nil
}
