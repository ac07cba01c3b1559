package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/kit/nvml"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const (
	clusterName     = "kit"
	namespaceName   = "gpuready"
	validator       = "nvidia-operator-validator"
	plugin          = "nvidia-device-plugin-daemonset"
	toolkit         = "nvidia-container-toolkit-daemonset"
	mpsDaemon       = "nvidia-device-plugin-mps-control-daemon"
	simulatedDriver = "simulated-driver.yaml"
	keptProof       = "cuda-proof.json" // the validator's file beside its proofs
)

func (k *kit) steps() []task {
	return []task{
		{"cluster", "a node is Ready", 90 * time.Second, true, k.startCluster},
		{"install", "gpuready.yaml makes the node's condition GPUReady true", 2 * time.Minute, true, k.install},
		{"prove", "the validation pod has computed on a GPU that it requested", 30 * time.Second, false, k.checkProof},
		{"vectorAdd", "a pod with nvidia.com/gpu: 1 passes", 30 * time.Second, false, k.runVectorAdd},
		{"NVML", "init, reading and shutdown take less than 5 s", 40 * time.Second, false, k.timeNVML},
		{"NVML calls", "a device plugin's calls are counted", 80 * time.Second, false, k.countNVML},
		{"preflight", "no GPU is unhealthy or computes wrong", time.Minute, false, k.runPreflight},
		{"restart", "a new validator proves the idle GPU", 40 * time.Second, false, k.restartIdle},
		{"full memory", "a new validator leaves the GPU to the pod that fills it, and is ready", time.Minute, false, k.restartFull},
		{"EXCLUSIVE_PROCESS", "a new validator leaves the GPU to the pod that excludes it, and is ready", time.Minute, false, k.restartExclusive},
		{"XID", "the device plugin counts the XID of a faulty kernel, and goes on offering the GPU", 40 * time.Second, false, k.causeXID},
		{"MPS", "a new validator is ready while a client of MPS uses the GPU", 90 * time.Second, false, k.restartMPS},
		{"claim", "gpu-dra-driver gives a pod with a claim a GPU", time.Minute, false, k.runClaim},
		{"uninstall", "no program or CDI spec is left on the node", 90 * time.Second, false, k.uninstall},
	}
}

// startCluster brings the cluster up, with all programs from the kit's folder.
func (k *kit) startCluster(ctx context.Context) (string, error) {
	if k.simulate == "" {
		devices, err := filepath.Glob("/dev/nvidia[0-9]*")
		if err != nil || len(devices) == 0 {
			return "", errors.New("this machine has no /dev/nvidia0: no GPU, or no driver; or its container was given none")
		}
	}
	if err := os.Setenv("GPUREADY_CLUSTERS", filepath.Join(k.dir, "clusters")); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(filepath.Join(k.dir, "bin"))
	if err != nil {
		return "", err
	}
	programs := binaries.Dir{}
	for _, e := range entries {
		programs[e.Name()] = filepath.Join(k.dir, "bin", e.Name())
	}
	images, err := filepath.Glob(filepath.Join(k.dir, "images/*.tar"))
	if err != nil {
		return "", err
	}
	if k.simulate != "" {
		images = append(images, filepath.Join(k.simulate, "driver-simulator.tar"))
	}
	if k.regroup, err = clearTopGroup(); err != nil {
		return "", err
	}
	k.cluster, err = cluster.Up(ctx, cluster.Config{
		Name: clusterName, Images: images, Binaries: programs, GPUs: k.simulate == "",
		Progress: func(s cluster.Step) { fmt.Fprintf(os.Stderr, "  %5.1f s  %s\n", s.Took.Seconds(), s.What) },
	})
	if err != nil {
		return "", err
	}
	return "it is", nil
}

// install installs gpuready, and the driver's simulation if there is to be one.
func (k *kit) install(ctx context.Context) (string, error) {
	manifests := []string{"gpuready.yaml"}
	if k.simulate != "" {
		manifests = append(manifests, simulatedDriver)
	}
	began := time.Now()
	if err := k.apply(ctx, manifests...); err != nil {
		return "", err
	}
	if err := k.waitReady(ctx, toolkit, plugin, validator); err != nil {
		return "", errors.Join(err, k.explain(ctx))
	}
	k.report.measure("kubectl apply → GPUReady", time.Since(began).Seconds(), "s")
	m, err := k.readGPUs(ctx, 1)
	if err != nil {
		return "", err
	}
	k.report.Driver, k.mode = m.Driver, m.GPUs[0].Mode
	for _, g := range m.GPUs {
		k.report.GPUs = append(k.report.GPUs, g.Name)
	}
	offered, err := k.allocatable(ctx)
	return "it is true, nvidia.com/gpu: " + offered, err
}

// waitReady waits until DaemonSets are up to date, and the node's GPUs are ready.
func (k *kit) waitReady(ctx context.Context, daemonSets ...string) error {
	for _, name := range daemonSets {
		if _, err := k.kubectl(ctx, "-n", namespaceName, "rollout", "status", "daemonset/"+name); err != nil {
			return err
		}
	}
	_, err := k.kubectl(ctx, "wait", "--timeout=-1s", "--for=condition=GPUReady", "node/n1")
	return err
}

// explain returns an error that says how far the node has got.
func (k *kit) explain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	pods, _ := k.kubectl(ctx, "-n", namespaceName, "get", "pods")
	conditions, _ := k.kubectl(ctx, "get", "node/n1", "-o", `jsonpath={range .status.conditions[*]}{.type}={.status}: {.message}; {end}`)
	return fmt.Errorf("%s\n%s", conditions, pods)
}

func (k *kit) allocatable(ctx context.Context) (string, error) {
	return k.kubectl(ctx, "get", "node/n1", "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
}

func (k *kit) waitAllocatable(ctx context.Context, want int) error {
	return until(ctx, func() error {
		have, err := k.allocatable(ctx)
		if err == nil && have != fmt.Sprint(want) {
			err = fmt.Errorf("nvidia.com/gpu is %s, not %d", have, want)
		}
		return err
	})
}

func (k *kit) checkProof(ctx context.Context) (string, error) {
	const pod = "nvidia-device-plugin-validation-n1"
	if _, err := k.kubectl(ctx, "-n", namespaceName, "wait", "--timeout=-1s", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+pod); err != nil {
		return "", err
	}
	return k.readTest(ctx, namespaceName, pod)
}

// readTest returns the line with vectorAdd's result in a pod's output.
func (k *kit) readTest(ctx context.Context, namespace, pod string) (string, error) {
	out, err := k.kubectl(ctx, "-n", namespace, "logs", pod)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "Test PASSED") {
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%s printed: %s", pod, tail(out))
}

func (k *kit) runVectorAdd(ctx context.Context) (string, error) {
	began := time.Now()
	seen, err := k.runExample(ctx, "vectoradd")
	k.report.measure("kubectl apply → vectorAdd's pod has ended", time.Since(began).Seconds(), "s")
	return seen, err
}

// runExample runs the pod of an example to its end.
func (k *kit) runExample(ctx context.Context, name string) (string, error) {
	if err := k.apply(ctx, name+".yaml"); err != nil {
		return "", err
	}
	if _, err := k.kubectl(ctx, "wait", "--timeout=-1s", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name); err != nil {
		described, _ := k.kubectl(context.WithoutCancel(ctx), "describe", "pod/"+name)
		return "", fmt.Errorf("%w: %s", err, tail(described))
	}
	seen, err := k.readTest(ctx, "default", name)
	_, removed := k.kubectl(ctx, "delete", "--now", "-f", k.manifest(name+".yaml"))
	return seen, errors.Join(err, removed)
}

// timeNVML measures init and shutdown. The device plugin keeps the driver loaded meanwhile.
func (k *kit) timeNVML(ctx context.Context) (string, error) {
	const times = 9
	m, err := k.readGPUs(ctx, times)
	if err != nil {
		return "", err
	}
	for _, f := range []struct {
		what  string
		times []time.Duration
	}{{"nvmlInit", m.Init}, {"driver, names, UUIDs, memory and modes of all GPUs", m.Read}, {"nvmlShutdown", m.Shutdown}} {
		slices.Sort(f.times)
		k.report.measure(fmt.Sprintf("%s, median of %d", f.what, times), milliseconds(f.times[times/2]), "ms")
		k.report.measure(f.what+", longest", milliseconds(f.times[times-1]), "ms")
	}
	both := m.Init[times-1] + m.Shutdown[times-1]
	if both > 5*time.Second {
		return "", fmt.Errorf("init and shutdown took %v", both)
	}
	return fmt.Sprintf("init %.1f ms, shutdown %.1f ms", milliseconds(m.Init[times/2]), milliseconds(m.Shutdown[times/2])), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// restart deletes the validator's pod and what it remembers, and waits until the next one has judged the GPUs.
func (k *kit) restart(ctx context.Context) (readiness.Proof, error) {
	began := time.Now().Truncate(time.Second)
	proofs := k.node().PathOnNode(readiness.DefaultDir)
	// Without this the next one would go on with the proof of the last.
	if err := os.Remove(filepath.Join(proofs, keptProof)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return readiness.Proof{}, err
	}
	if _, err := k.kubectl(ctx, "-n", namespaceName, "delete", "pod", "--grace-period=1", "-l", "app="+validator); err != nil {
		return readiness.Proof{}, err
	}
	var proof readiness.Proof
	err := until(ctx, func() error {
		s, err := readiness.Read(proofs, readiness.CUDA, k.node().BootID())
		switch {
		case err != nil:
			return err
		case s.Proof == nil:
			return fmt.Errorf("layer cuda is not ready: %s: %s", s.NotReady.Reason, s.NotReady.Message)
		case s.Proof.Time.Before(began):
			return errors.New("the validator has not judged the GPUs again")
		}
		proof = *s.Proof
		return nil
	})
	if err != nil {
		return proof, err
	}
	return proof, k.waitReady(ctx, validator)
}

func (k *kit) restartIdle(ctx context.Context) (string, error) {
	began := time.Now()
	p, err := k.restart(ctx)
	k.report.measure("validator deleted → the next one is ready", time.Since(began).Seconds(), "s")
	if err == nil && p.GPUs == 0 {
		err = errors.New("it has proven no GPU: " + p.Summary)
	}
	return p.Summary, err
}

// holderPod is a pod that uses a GPU until it is deleted.
const holderPod = `apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: gpuready/cuda-samples:v%s
    command: [memtest, --for=10m, --every=100ms%s]
    resources: {limits: {nvidia.com/gpu: 1}}
`

// holding runs do while a pod uses a GPU, with these flags of memtest.
func (k *kit) holding(ctx context.Context, flags string, do func() (string, error)) (seen string, err error) {
	pod := fmt.Sprintf(holderPod, strings.TrimPrefix(k.report.Version, "v"), flags)
	if err := k.applyText(ctx, pod); err != nil {
		return "", err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		_, removed := k.kubectl(limited, "delete", "--now", "pod/holder")
		err = errors.Join(err, removed)
	}()
	if _, err := k.kubectl(ctx, "wait", "--timeout=-1s", "--for=condition=Ready", "pod/holder"); err != nil {
		return "", err
	}
	err = until(ctx, func() error {
		out, err := k.kubectl(ctx, "logs", "holder")
		if err == nil && !strings.Contains(out, "Test of ") { // memtest prints this once it has its memory
			err = fmt.Errorf("pod holder does not use its GPU yet: %s", tail(out))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return do()
}

// checkBusy restarts the validator, which must leave the GPU to its user.
func (k *kit) checkBusy(ctx context.Context) (string, error) {
	p, err := k.restart(ctx)
	if err == nil && len(p.Unproven) == 0 {
		err = errors.New("it has proven every GPU: " + p.Summary)
	}
	return p.Summary, err
}

func (k *kit) restartFull(ctx context.Context) (string, error) {
	flags := ", --share=0.999"
	if k.simulate != "" {
		flags = "" // its memory is this machine's
	}
	return k.holding(ctx, flags, func() (seen string, err error) {
		if k.simulate != "" {
			if err := k.gpusim(ctx, "load", "--gpu=all", "--memory-used=all"); err != nil {
				return "", err
			}
			defer func() {
				err = errors.Join(err, k.gpusim(context.WithoutCancel(ctx), "load", "--gpu=all", "--memory-used=0"))
			}()
		}
		var free uint64
		err = until(ctx, func() error {
			m, err := k.readGPUs(ctx, 1)
			if err != nil {
				return err
			}
			free = slices.MinFunc(m.GPUs, func(a, b nvml.GPU) int { return int(a.Free>>20) - int(b.Free>>20) }).Free >> 20
			if free > 300 {
				return fmt.Errorf("%d MiB of its memory are free", free)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
		seen, err = k.checkBusy(ctx)
		return fmt.Sprintf("%d MiB were free; %s", free, seen), err
	})
}

// gpusim runs gpusim in the simulated driver's pod.
func (k *kit) gpusim(ctx context.Context, args ...string) error {
	_, err := k.kubectl(ctx, append([]string{"-n", namespaceName, "exec", "daemonset/nvidia-driver-daemonset", "--", "gpusim"}, args...)...)
	return err
}

func (k *kit) restartExclusive(ctx context.Context) (seen string, err error) {
	if _, err := k.onNode(ctx, "mode", fmt.Sprint(nvml.ModeExclusive)); err != nil {
		return "", &unable{"the compute mode cannot be set: " + tail(err.Error())}
	}
	defer func() {
		_, restored := k.onNode(context.WithoutCancel(ctx), "mode", fmt.Sprint(k.mode))
		err = errors.Join(err, restored)
	}()
	return k.holding(ctx, "", func() (string, error) { return k.checkBusy(ctx) })
}

// restartMPS shares the GPUs by MPS for a while.
func (k *kit) restartMPS(ctx context.Context) (seen string, err error) {
	found := slices.ContainsFunc([]string{"/usr/bin", "/run/nvidia/driver/usr/bin"}, func(dir string) bool {
		_, err := os.Stat(k.node().PathOnNode(dir + "/nvidia-cuda-mps-control"))
		return err == nil
	})
	if !found {
		return "", &unable{"this machine has no nvidia-cuda-mps-control"}
	}
	if err := k.share(ctx, "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"); err != nil {
		return "", err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 40*time.Second)
		defer cancel()
		_, removed := k.kubectl(limited, "delete", "--ignore-not-found", "daemonset/"+mpsDaemon, "-n", namespaceName)
		err = errors.Join(err, removed, k.share(limited, "sharing: {}"), k.waitAllocatable(limited, len(k.report.GPUs)), k.waitReady(limited, plugin, validator))
	}()
	if err := k.apply(ctx, "mps.yaml"); err != nil {
		return "", err
	}
	err = errors.Join(k.waitReady(ctx, mpsDaemon, plugin), k.waitAllocatable(ctx, 2*len(k.report.GPUs)))
	if err != nil {
		return "", err
	}
	return k.holding(ctx, ", --bytes=1Mi", func() (string, error) {
		p, err := k.restart(ctx)
		return p.Summary, err
	})
}

// share gives the device plugin a configuration.
func (k *kit) share(ctx context.Context, text string) error {
	const configMap = `apiVersion: v1
kind: ConfigMap
metadata: {name: gpuready-device-plugin-config, namespace: gpuready}
data: {config.yaml: 'version: v1

  %s'}
`
	if err := k.applyText(ctx, fmt.Sprintf(configMap, text)); err != nil {
		return err
	}
	// A new folder's name makes new pods.
	_, err := k.kubectl(ctx, "-n", namespaceName, "patch", "daemonset/"+plugin, "-p", fmt.Sprintf(`{"spec":{"template":{
"metadata":{"annotations":{"kit":%q}},"spec":{
"containers":[{"name":"device-plugin","env":[{"name":"CONFIG_FILE","value":"/etc/gpuready/config.yaml"}],
"volumeMounts":[{"name":"config","mountPath":"/etc/gpuready","readOnly":true}]}],
"volumes":[{"name":"config","configMap":{"name":"gpuready-device-plugin-config"}}]}}}}`, text))
	return err
}

func (k *kit) runClaim(ctx context.Context) (string, error) {
	if err := k.apply(ctx, "dra-driver.yaml"); err != nil {
		return "", err
	}
	if _, err := k.kubectl(ctx, "label", "--overwrite", "node/n1", "nvidia.com/gpu.serve=dra"); err != nil {
		return "", err
	}
	if _, err := k.kubectl(ctx, "-n", namespaceName, "rollout", "status", "daemonset/gpu-dra-driver"); err != nil {
		return "", err
	}
	return k.runExample(ctx, "claim")
}

// uninstall deletes all manifests.
func (k *kit) uninstall(ctx context.Context) (string, error) {
	manifests := []string{"dra-driver.yaml", simulatedDriver, "mps.yaml", "gpuready.yaml"}
	for _, name := range manifests {
		if name == simulatedDriver && k.simulate == "" {
			continue
		}
		if _, err := k.kubectl(ctx, "delete", "--ignore-not-found", "-f", k.manifest(name)); err != nil {
			return "", err
		}
	}
	if err := k.apply(ctx, "uninstall.yaml"); err != nil {
		return "", err
	}
	const restorer = "gpuready-uninstall"
	if _, err := k.kubectl(ctx, "-n", restorer, "rollout", "status", "daemonset/"+restorer); err != nil {
		return "", err
	}
	if _, err := k.kubectl(ctx, "delete", "-f", k.manifest("uninstall.yaml")); err != nil {
		return "", err
	}
	var left []string
	for _, pattern := range []string{"/run/cdi/*", "/usr/local/nvidia/gpuready/*", "/run/nvidia/mps/*/log"} {
		found, err := filepath.Glob(k.node().PathOnNode(pattern))
		if err != nil {
			return "", err
		}
		left = append(left, found...)
	}
	if len(left) > 0 {
		return "", fmt.Errorf("left behind on the node: %s", strings.Join(left, ", "))
	}
	if k.simulate == "" {
		m, err := k.readGPUs(ctx, 1)
		if err != nil {
			return "", err
		}
		if m.GPUs[0].Mode != k.mode {
			return "", fmt.Errorf("the compute mode is %d; it was %d", m.GPUs[0].Mode, k.mode)
		}
	}
	return "nothing", nil
}
