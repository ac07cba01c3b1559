package main

import (
	"io"
	"log/slog"
	"maps"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/status"
)

// Limits of requests to the API server: 5,000 nodes are labelled within a minute, and others are
// still served.
const (
	qps   = 150
	burst = 300
)

// pinnable lists our images that the operator deploys. Releases name each by its digest, in variables
// whose prefix tools of the Operator Lifecycle Manager know.
var pinnable = []string{"device-plugin", "dra-driver", "driver-simulator", "toolkit", "validator"}

// options are the flags that the commands share.
type options struct {
	flags *program.Flags

	kubeconfig, logFormat, logLevel string
	cluster                         state.Cluster
	namespace                       string
	nvidiaRelease, nvidiaRegistry   string
	pinned                          map[string]*string // full names of our images, by name
}

// newOptions returns the options of a command whose help has usage, the flags and exit codes.
func newOptions(name, usage string, stdout io.Writer) *options {
	return &options{flags: program.NewFlags("gpu-operator "+name, usage, exitHelp, stdout)}
}

// addNamespaceFlags adds the flags of the operator's and the operands' namespaces.
func (o *options) addNamespaceFlags() {
	o.flags.StringVar(&o.namespace, "namespace", "", "namespace of the operator, of its Lease")
	o.flags.StringVar(&o.cluster.Namespace, "operand-namespace", "", "namespace of the operands (default: that of the operator)")
	maps.Copy(o.flags.Env, map[string]string{"namespace": "POD_NAMESPACE", "operand-namespace": "OPERAND_NAMESPACE"})
}

// addImageFlags adds the flags of images that the policy does not name.
func (o *options) addImageFlags() {
	o.flags.StringVar(&o.cluster.ImageRepository, "image-repository", "gpuready", "where our images are that the policy does not name")
	o.flags.StringVar(&o.cluster.ImageVersion, "image-version", version.Release(), "default tag of our images")
	o.flags.StringVar(&o.nvidiaRelease, "nvidia-release", "", "release of NVIDIA's GPU Operator, such as 25.3, with whose versions NVIDIA's images are used that the policy does not name (default: "+newestRelease()+")")
	o.flags.StringVar(&o.nvidiaRegistry, "nvidia-registry", "", "registry, and path, of a mirror of those in place of nvcr.io")
	o.pinned = map[string]*string{}
	for _, name := range pinnable {
		flag := name + "-image"
		o.pinned[name] = o.flags.String(flag, "", "image "+name+", repository/name@digest (default: of --image-repository, with --image-version)")
		o.flags.Env[flag] = "RELATED_IMAGE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	}
	maps.Copy(o.flags.Env, map[string]string{
		"image-repository": "IMAGE_REPOSITORY", "image-version": "IMAGE_VERSION", "nvidia-release": "NVIDIA_RELEASE", "nvidia-registry": "NVIDIA_REGISTRY",
	})
}

// addAPIFlags adds the flags of the API server and of the log.
func (o *options) addAPIFlags() {
	o.flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; empty: as the pod's service account")
	o.flags.Env["kubeconfig"] = "KUBECONFIG"
	o.flags.AddLogFormat(&o.logFormat)
	o.flags.AddLogLevel(&o.logLevel)
}

// parse parses command line and environment.
func (o *options) parse(args []string) error {
	if err := o.parseWithFiles(args); err != nil {
		return err
	}
	return o.flags.RefuseArgs()
}

// parseWithFiles is parse for a command with arguments besides its flags.
func (o *options) parseWithFiles(args []string) error {
	if err := o.flags.Read(args); err != nil {
		return err
	}
	if o.cluster.Namespace == "" {
		o.cluster.Namespace = o.namespace
	}
	release, err := nvidia.FindRelease(o.nvidiaRelease)
	if err != nil {
		return program.UsageErrorf("--nvidia-release: %w", err)
	}
	o.cluster.NVIDIA = driver.NVIDIAImages(release, o.nvidiaRegistry)
	return o.readPinned()
}

// readPinned reads the flags of single images.
func (o *options) readPinned() error {
	o.cluster.Pinned = map[string]v1.ImageSpec{}
	for _, name := range pinnable {
		if o.pinned[name] == nil || *o.pinned[name] == "" {
			continue
		}
		image, err := v1.ParseImage(*o.pinned[name])
		if err != nil {
			return program.UsageErrorf("--%s-image: %w", name, err)
		}
		o.cluster.Pinned[name] = image
	}
	return nil
}

func newestRelease() string {
	all := nvidia.Releases()
	return all[len(all)-1].Name
}

// restConfig returns the configuration of the API server's client.
func (o *options) restConfig() (*rest.Config, error) {
	var c *rest.Config
	var err error
	if o.kubeconfig == "" {
		if c, err = rest.InClusterConfig(); err != nil {
			return nil, program.UsageErrorf("%w; outside of a cluster set --kubeconfig", err)
		}
	} else if c, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return nil, program.UsageErrorf("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	// Decompressing watches, which API servers compress event by event, was 9 % of an event's
	// cost (docs/decisions/0033-each-reconcile-plans-all-nodes-at-a-limited-rate.md).
	c.DisableCompression = true
	c.QPS, c.Burst, c.UserAgent = qps, burst, "gpu-operator/"+strings.Fields(version.String())[0]
	return c, nil
}

// logger returns the logger of the operator, which the Kubernetes libraries use, too.
func (o *options) logger(stderr io.Writer) (*slog.Logger, error) {
	plain, err := program.NewLog(stderr, "operator", o.logFormat, o.logLevel)
	if err != nil {
		return nil, err
	}
	log := slog.New(status.LogHandler(plain.Handler()))
	libraries := logr.FromSlogHandler(log.Handler())
	klog.SetLogger(libraries)
	ctrllog.SetLogger(libraries)
	return log, nil
}
