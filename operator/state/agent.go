package state

import (
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Names of operands in the labels nvidia.com/gpu.deploy.<operand>.
const (
	operandToolkit   = "container-toolkit"
	operandPlugin    = "device-plugin"
	operandValidator = "operator-validator"
)

func (r *renderer) toolkits() error {
	spec := r.spec.Toolkit
	if !spec.IsEnabled() {
		return nil
	}
	image := r.in.Cluster.ownImage(deployments.Toolkit, spec.ImageSpec)
	r.reportUnfollowed("toolkit.env", nvidia.ToolkitSettings(), spec.Env)
	for _, i := range r.injections {
		runtime := i != fleet.NRI || r.offersToolkitHandler(i)
		d, err := r.newAgent(deployments.Toolkit, image, i, runtime)
		if err != nil {
			return err
		}
		c := container(d, "toolkit")
		if runtime && r.in.Cluster.OpenShift {
			remountVolume(d, "runtime", "/host", "/etc/crio")
		}
		r.setHandler(c, i)
		if !r.spec.CDI.IsEnabled() {
			setEnv(c, v1.EnvVar{Name: "CDI_ENABLED", Value: "false"})
		}
		if spec.InstallDir != "/usr/local/nvidia" {
			if dir := r.moveVolume(d, "toolkit.installDir", "programs", "/host", spec.InstallDir, installFolder); dir != "" {
				setEnv(c, v1.EnvVar{Name: "TOOLKIT_INSTALL_DIR", Value: dir})
			}
		}
		r.setHostPaths(d, c)
		r.overlay("toolkit", c, spec.ContainerSpec)
		r.moveInstallDir(d, c)
		if runtime {
			mountConfigs(d, c)
		}
		if err := r.finish(progress.Toolkit, d, operandToolkit, i, podFields{"toolkit", &spec.PodSpec}, spec.ImageSpec); err != nil {
			return err
		}
	}
	return nil
}

// mountConfigs mounts, writable, the directories of the runtime's configuration files that the
// policy's environment names, as the reference does.
func mountConfigs(d *appsv1.DaemonSet, c *corev1.Container) {
	names := []string{"RUNTIME_CONFIG", "RUNTIME_DROP_IN_CONFIG", "CONTAINERD_CONFIG", "CRIO_CONFIG", "DOCKER_CONFIG"}
	var dirs []string
	for _, e := range c.Env {
		if dir := path.Dir(e.Value); slices.Contains(names, e.Name) && path.IsAbs(dir) && dir != "/" && !strings.ContainsAny(dir, ":\n") && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return
	}
	remountVolume(d, "runtime", "/host", dirs[0])
	for n, dir := range dirs[1:] {
		mountVolume(d, c, path.Join("/host", dir), false, hostDirectory(fmt.Sprintf("runtime-%d", n+2), dir))
	}
}

// hostPrefix returns where an agent has the host's directories: without NRI it mounts the host's
// root.
func hostPrefix(i fleet.Injection) string {
	if i == fleet.NRI {
		return ""
	}
	return "/host"
}

// setHostPaths sets the host's paths of the root file system and the driver.
func (r *renderer) setHostPaths(d *appsv1.DaemonSet, c *corev1.Container) {
	if root := r.path("hostPaths.rootFS", r.spec.HostPaths.RootFS); root != "" {
		pod := &d.Spec.Template.Spec
		for i := range pod.Volumes {
			if pod.Volumes[i].Name == hostRoot {
				pod.Volumes[i].HostPath.Path = root
			}
		}
	}
	if r.spec.HostPaths.DriverInstallDir != "/run/nvidia/driver" {
		if dir := r.moveVolume(d, "hostPaths.driverInstallDir", "driver", "", r.spec.HostPaths.DriverInstallDir); dir != "" {
			setEnv(c, v1.EnvVar{Name: "NVIDIA_DRIVER_ROOT", Value: dir})
		}
	}
}

// finish sets the DaemonSet's placement and common fields, and adds it to the objects.
func (r *renderer) finish(s progress.State, d *appsv1.DaemonSet, operand string, i fleet.Injection, pod podFields, images ...v1.ImageSpec) error {
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(images...)
	init := d.Spec.Template.Spec.InitContainers
	for n := range init {
		init[n].ImagePullPolicy = images[0].PullPolicy()
	}
	r.setPlacement(d, operand, map[string]string{label.Injection: string(i)})
	r.applyPodFields(s, d, pod)
	r.setUpdateStrategy(d)
	return r.add(s, d)
}
