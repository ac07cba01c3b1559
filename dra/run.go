package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/dra/plugin"
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/program"
)

const runUsage = `Publish this node's GPUs and MIG devices as ResourceSlices of the driver gpu.nvidia.com, and prepare
the claims of its pods, until SIGTERM.

Usage:
  gpu-dra-driver [run] [flags]

Examples:
  gpu-dra-driver                                     # in a pod, with NODE_NAME and POD_UID set
  gpu-dra-driver --kubeconfig ~/.kube/config --node-name node-1
  gpu-dra-driver --cdi-kind nvidia.com/gpu           # give containers the names that people know
  gpu-dra-driver --evict 48,79,95,GPULost            # pods on such GPUs are evicted
  gpu-dra-driver --host-root /host --listen=
`

// runOptions holds the flags of run.
type runOptions struct {
	*options
	kubeconfig, podUID, podResources   string
	cdiDir, cdiKind, listen, logFormat string
	checkNodes                         bool
	evict                              []string
	silence                            time.Duration
}

func newRunOptions(stdout io.Writer) *runOptions {
	o := &runOptions{options: newOptions("run", runUsage, stdout)}
	f := o.flags
	f.StringVar(&o.podUID, "pod-uid", "", "UID of this program's pod, with which two instances may run during an update (Kubernetes 1.33); empty: one at a time")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that names the API server; empty: the service account of the pod")
	f.StringVar(&o.podResources, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket")
	f.StringVar(&o.cdiDir, "cdi-output-dir", cdi.DynamicDir, "folder of the toolkit's CDI specs, on the host; it is only read")
	f.StringVar(&o.cdiKind, "cdi-kind", cdi.KindGPU, "kind of the CDI devices that containers are given; the toolkit names every GPU and MIG device in it")
	f.BoolVar(&o.checkNodes, "check-device-nodes", false, "look in the host's /dev, below --host-root, for the device nodes of a claim, besides what gpu-toolkit reports; for a program that sees the host's /dev")
	f.DurationVar(&o.silence, "silence-limit", plugin.DefaultSilence, "time after which the GPUs get a taint if gpu-device-plugin does not run")
	f.StringSliceVar(&o.evict, "evict", nil, "faults for which the pods that hold a GPU are evicted, too: numbers of XIDs, and of the reasons ECC, GPULost, Missing, ResetNeeded, RowRemap, XID; empty: none")
	f.StringVar(&o.listen, "listen", ":9407", "address for /healthz, /readyz, /metrics; empty: none")
	f.AddLogFormat(&o.logFormat)
	maps.Copy(f.Env, map[string]string{
		"pod-uid": "POD_UID", "kubeconfig": "KUBECONFIG", "pod-resources-socket": "POD_RESOURCES_SOCKET", "cdi-output-dir": "CDI_OUTPUT_DIR",
		"cdi-kind": "CDI_KIND", "check-device-nodes": "CHECK_DEVICE_NODES", "silence-limit": "SILENCE_LIMIT", "evict": "EVICT", "listen": "LISTEN_ADDRESS",
	})
	return o
}

func runDriver(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newRunOptions(stdout)
	if err := o.read(args, "pod-resources-socket", "cdi-output-dir"); err != nil {
		return err
	}
	if o.silence < 0 {
		return program.UsageErrorf("--silence-limit %v is negative", o.silence)
	}
	evictions, err := inventory.ParseEvictions(o.evict)
	if err != nil {
		return program.UsageErrorf("--evict: %w", err)
	}
	log, err := program.NewLog(stderr, "dra-driver", o.logFormat, "")
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	client, err := o.client()
	if err != nil {
		return err
	}
	cfg := plugin.Config{
		NodeName: o.nodeName, PodUID: o.podUID, Client: client, KubeletDir: o.kubeletDir, PodResources: o.podResources, HostRoot: o.hostRoot,
		StateDir: o.stateDir, CDIDir: o.cdiDir, CDIKind: o.cdiKind, Listen: o.listen, Silence: o.silence, Evict: evictions, PCIeRoot: readPCIeRoot, Log: log,
	}
	if o.checkNodes {
		cfg.DevDir = "/dev"
	}
	log.Info("starting", "node", o.nodeName, "pid", os.Getpid())
	return plugin.Run(ctx, cfg)
}

// Limits on requests to the API server, in a second and at once: a lookup for each claim, and an
// update for each change of a slice. The API server itself is fair among its clients.
const (
	clientQPS   = 50
	clientBurst = 100
)

// client returns a client of the API server.
func (o *runOptions) client() (kubernetes.Interface, error) {
	var c *rest.Config
	var err error
	if o.kubeconfig == "" {
		if c, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("%w; next: run it in a pod with a service account, or name a --kubeconfig", err)
		}
	} else if c, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return nil, program.UsageErrorf("--kubeconfig %s: %s", o.kubeconfig, strings.TrimSpace(err.Error()))
	}
	c.UserAgent = "gpu-dra-driver"
	// client-go's defaults, 5 and 10, would delay a claim by 200 ms when several pods start at once.
	c.QPS, c.Burst = clientQPS, clientBurst
	c.ContentType, c.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(c)
}

// readPCIeRoot reads the PCIe root of a GPU from sysfs; "": it has none there, as a simulated one.
func readPCIeRoot(address gpu.PCIAddress) string {
	root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(string(address))
	if err != nil || root.Value.StringValue == nil {
		return ""
	}
	return *root.Value.StringValue
}
