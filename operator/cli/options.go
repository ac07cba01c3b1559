package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/operator/right"
	"github.com/gpuready/gpuready/operator/state"
)

// What the API server is asked at most: 5,000 nodes are labelled within a minute, and
// others are still served.
const (
	qps   = 150
	burst = 300
)

// imageVersion is the release whose images are used where nobody names another.
const imageVersion = "v0.1.0"

// options are the flags that the commands share.
type options struct {
	flags *pflag.FlagSet
	env   map[string]string

	kubeconfig, logFormat, logLevel string
	cluster                         state.Cluster
	namespace                       string
}

// command begins a command: its help is usage, the flags, and the exit codes.
func command(name, usage string, stdout io.Writer) *options {
	o := &options{flags: pflag.NewFlagSet(name, pflag.ContinueOnError), env: map[string]string{}}
	o.flags.SetOutput(io.Discard)
	o.flags.SortFlags = false
	o.flags.Usage = func() {
		fmt.Fprint(stdout, usage+"\nFlags (each with its environment variable; the command line wins):\n"+o.flags.FlagUsages()+exitHelp)
	}
	return o
}

// places adds the flags that say where the operands are.
func (o *options) places() {
	o.flags.StringVar(&o.namespace, "namespace", "", "namespace of the operator, of its Lease")
	o.flags.StringVar(&o.cluster.Namespace, "operand-namespace", "", "namespace of the operands (default: that of the operator)")
	maps.Copy(o.env, map[string]string{"namespace": "POD_NAMESPACE", "operand-namespace": "OPERAND_NAMESPACE"})
}

// images adds the flags that say where our images are.
func (o *options) images() {
	o.flags.StringVar(&o.cluster.ImageRepository, "image-repository", "gpuready", "where our images are that the policy does not name")
	o.flags.StringVar(&o.cluster.ImageVersion, "image-version", imageVersion, "their tag")
	maps.Copy(o.env, map[string]string{"image-repository": "IMAGE_REPOSITORY", "image-version": "IMAGE_VERSION"})
}

// api adds the flags of the API server and of the log.
func (o *options) api() {
	o.flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; empty: as the pod's service account")
	o.flags.StringVar(&o.logFormat, "log-format", "text", "of the log on stderr: text or json")
	o.flags.StringVar(&o.logLevel, "log-level", "info", "of the log: debug, info, warn or error")
	maps.Copy(o.env, map[string]string{"kubeconfig": "KUBECONFIG", "log-format": "LOG_FORMAT", "log-level": "LOG_LEVEL"})
}

// parse reads command line and environment.
func (o *options) parse(args []string) error {
	config.Describe(o.flags, o.env)
	if err := o.flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return usageError("%w; see gpu-operator %s --help", err, o.flags.Name())
	}
	if err := config.Env(o.flags, o.env); err != nil {
		return usageError("%w; see gpu-operator %s --help", err, o.flags.Name())
	}
	if rest := o.flags.Args(); len(rest) > 0 {
		return usageError("%s takes no arguments, not %q", o.flags.Name(), strings.Join(rest, " "))
	}
	if o.cluster.Namespace == "" {
		o.cluster.Namespace = o.namespace
	}
	return nil
}

// rest is how the API server is reached.
func (o *options) rest() (*rest.Config, error) {
	var c *rest.Config
	var err error
	if o.kubeconfig == "" {
		if c, err = rest.InClusterConfig(); err != nil {
			return nil, usageError("%w; outside of a cluster say --kubeconfig", err)
		}
	} else if c, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return nil, usageError("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	c.QPS, c.Burst, c.UserAgent = qps, burst, "gpu-operator/"+strings.Fields(version.String())[0]
	return c, nil
}

// logger is where everything that logs does, the Kubernetes libraries too.
func (o *options) logger(stderr io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, usageError("--log-level %q: want debug, info, warn or error", o.logLevel)
	}
	var handler slog.Handler
	switch o.logFormat {
	case "text":
		handler = slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})
	case "json":
		handler = slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})
	default:
		return nil, usageError("--log-format %q: want text or json", o.logFormat)
	}
	log := slog.New(right.Handler(handler)).With("component", "operator")
	libraries := logr.FromSlogHandler(log.Handler())
	klog.SetLogger(libraries)
	ctrllog.SetLogger(libraries)
	return log, nil
}
