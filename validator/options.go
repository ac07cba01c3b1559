package main

import (
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/step"
)

// options holds the flags that the commands share, and their values.
type options struct {
	flags *program.Flags
	short map[string]string // one-letter names of flags, where a command has them

	hostRoot, driverRoot, devRoot, stateDir, outputDir, cdiDir string
	podResources, vectorAdd, logFormat                         string
	allowSimulated                                             bool
	cudaTimeout                                                time.Duration
	cudaParallel                                               int
	optional                                                   []string
	asked                                                      []readiness.Layer // of optional
}

// command returns the options of a command. Its help is usage, the flags, and the exit codes.
func command(name, usage string, stdout io.Writer) *options {
	return &options{flags: program.NewFlags("gpu-validator "+name, usage, exitHelp, stdout)}
}

func (o *options) bindEnv(flag, variable string) { o.flags.Env[flag] = variable }

// addPathFlags adds the flags for the folders of proofs and states.
func (o *options) addPathFlags() {
	f := o.flags
	f.StringVar(&o.hostRoot, "host-root", "/", "where the host's root is seen")
	f.StringVarP(&o.outputDir, "output-dir", o.short["output-dir"], readiness.DefaultDir, "folder of the proofs, on the host")
	f.StringVar(&o.stateDir, "state-dir", "/run/nvidia/gpuready", "folder of the components' states, on the host")
	maps.Copy(o.flags.Env, map[string]string{"host-root": "HOST_ROOT", "output-dir": "OUTPUT_DIR", "state-dir": "GPUREADY_STATE_DIR"})
}

// addDriverFlags adds the flags for the driver's place and kind.
func (o *options) addDriverFlags() {
	f := o.flags
	f.StringVar(&o.driverRoot, "driver-root", "", "the driver's root, on the host (default: "+check.ContainerRoot+" if it holds a libnvidia-ml, else /)")
	f.StringVar(&o.devRoot, "dev-root", "", "folder that holds dev/nvidia*, on the host (default: the driver root if it has them, else /)")
	f.BoolVar(&o.allowSimulated, "allow-simulated", false, "accept a simulated driver, and mark every result as simulated")
	maps.Copy(o.flags.Env, map[string]string{
		"driver-root": "NVIDIA_DRIVER_ROOT", "dev-root": "NVIDIA_DEV_ROOT", "allow-simulated": "ALLOW_SIMULATED",
	})
}

// addCheckFlags adds the flags for the checks.
func (o *options) addCheckFlags() {
	o.addDriverFlags()
	f := o.flags
	f.StringVar(&o.cdiDir, "cdi-output-dir", cdi.DynamicDir, "folder of the toolkit's CDI specs, on the host")
	f.StringVar(&o.podResources, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket, on the host")
	f.StringVar(&o.vectorAdd, "vectoradd", "", "the vectorAdd sample (default: beside gpu-validator, else in PATH)")
	f.DurationVar(&o.cudaTimeout, "cuda-timeout", time.Minute, "time limit of the sample on one GPU")
	f.IntVar(&o.cudaParallel, "cuda-parallel", 8, "number of GPUs on which the sample runs at a time")
	f.StringSliceVar(&o.optional, "optional", nil, "optional layers to check: "+names(readiness.Optional()))
	maps.Copy(o.flags.Env, map[string]string{
		"optional": "OPTIONAL_STEPS", "cdi-output-dir": "CDI_OUTPUT_DIR", "pod-resources-socket": "POD_RESOURCES_SOCKET",
		"vectoradd": "VECTORADD", "cuda-timeout": "CUDA_TIMEOUT", "cuda-parallel": "CUDA_PARALLEL",
	})
}

func (o *options) addLogFlags() {
	o.flags.AddLogFormat(&o.logFormat)
}

// parse reads command line and environment, and returns the remaining arguments.
func (o *options) parse(args []string) ([]string, error) {
	if err := o.flags.Read(args); err != nil {
		return nil, err
	}
	for _, name := range []string{"host-root", "driver-root", "dev-root", "state-dir", "output-dir", "cdi-output-dir", "pod-resources-socket"} {
		if f := o.flags.Lookup(name); f != nil && f.Value.String() != "" && !filepath.IsAbs(f.Value.String()) {
			return nil, program.UsageErrorf("--%s %q: want an absolute path", name, f.Value.String())
		}
	}
	if o.cudaParallel < 0 || o.cudaTimeout < 0 {
		return nil, program.UsageErrorf("--cuda-parallel and --cuda-timeout must not be negative")
	}
	for _, name := range o.optional {
		l, err := readiness.ParseOptional(name)
		if err != nil {
			return nil, program.UsageErrorf("--optional: %w", err)
		}
		o.asked = append(o.asked, l)
	}
	if o.flags.Lookup("optional") != nil {
		o.askByVariables()
	}
	return o.flags.Args(), nil
}

// layerVariables are variables of NVIDIA's stack that ask for an optional layer.
var layerVariables = map[string]readiness.Layer{
	"GDRCOPY_ENABLED": readiness.GDRCopy, "GDS_ENABLED": readiness.GDS, "GPU_DIRECT_RDMA_ENABLED": readiness.Peermem, "MOFED_ENABLED": readiness.MOFED,
}

// askByVariables adds the optional layers that these variables ask for.
func (o *options) askByVariables() {
	for _, l := range readiness.Optional() {
		for variable, layer := range layerVariables {
			if wanted, err := strconv.ParseBool(os.Getenv(variable)); err == nil && wanted && layer == l && !slices.Contains(o.asked, l) {
				o.asked = append(o.asked, l)
			}
		}
	}
}

// unfollowed returns the settings of NVIDIA's validator that are set and have no effect on the
// daemon, whose namespace is given.
func (o *options) unfollowed(environ []string, namespace string) (found []nodestate.Setting) {
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		why := nvidia.Unfollowed(nvidia.ValidatorSettings(), name, value)
		if name == "OPERATOR_NAMESPACE" && value != "" && value != namespace {
			why = "pods are run in the validator's own namespace, POD_NAMESPACE"
		}
		if why != "" {
			found = append(found, nodestate.Setting{Name: name + "=" + value, Message: why})
		}
	}
	slices.SortFunc(found, func(a, b nodestate.Setting) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func names(layers []readiness.Layer) string {
	var all []string
	for _, l := range layers {
		all = append(all, string(l))
	}
	return strings.Join(all, ",")
}

// settle is the time in which the kubelet may not have applied a change of the device plugin
// yet. It takes milliseconds, or a second on a busy node.
const settle = 3 * time.Second

// node returns the node described by the flags.
func (o *options) node() (check.Node, error) {
	root, err := host.Open(o.hostRoot)
	if err != nil {
		return check.Node{}, program.UsageErrorf("--host-root %s: %w", o.hostRoot, err)
	}
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return check.Node{}, err
	}
	n := check.Node{
		Root: root, BootID: boot, DriverRoot: clean(o.driverRoot), DevRoot: clean(o.devRoot),
		StateDir: o.stateDir, CDIDirs: []string{cdi.StaticDir, o.cdiDir}, PodResources: o.podResources,
		AllowSimulated: o.allowSimulated, VectorAdd: o.vectorAdd,
		Injection: os.Getenv(injection.Variable), Settle: settle,
		CUDATimeout: o.cudaTimeout, CUDAConcurrency: o.cudaParallel, ReadUsage: probe.ReadUsage,
	}
	if n.VectorAdd == "" {
		n.VectorAdd = findSample("vectoradd")
	}
	return n, nil
}

// keptProof returns the file in which commands that write proofs keep that of layer cuda.
func (o *options) keptProof(node check.Node) string {
	return filepath.Join(node.Root.Path(o.outputDir), step.KeptProofName)
}

func clean(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Clean(path)
}

// findSample returns the path of one of our samples, "" if there is none.
func findSample(name string) string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func (o *options) logger(stderr io.Writer) (*slog.Logger, error) {
	return program.NewLog(stderr, string(nodestate.Validator), o.logFormat, "")
}
