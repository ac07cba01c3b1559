package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/program"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
)

const prebuildUsage = `Build the driver's kernel modules for a kernel that no node runs yet, by a Job in the
cluster, and push them to the registry that spec.driver.prebuild of the ClusterPolicy, or
spec.prebuild of an NVIDIADriver, names. Nodes that boot this kernel pull them and compile
nothing. The Job needs no GPU. The driver's image must be one of gpuready's own, with the
driver's sources.

It waits for the Job's end and prints the image and its digest or, if the Job fails, the
message of the failed container. kubectl gpu status shows everything that was built.

Examples:
  kubectl gpu prebuild --kernel 5.14.0-427.50.1.el9_4.x86_64 --os-tag rhcos4.18 \
    --toolkit-image $(oc adm release info 4.18.1 --image-for=driver-toolkit)
  kubectl gpu prebuild --kernel 6.8.0-100-generic --dry-run \
    --toolkit-image registry.example.com/headers:6.8.0-100
  kubectl gpu prebuild --kernel 6.8.0-100-generic --nvidia-driver gold \
    --toolkit-image registry.example.com/headers:6.8.0-100
`

func prebuildModules(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := newCommand("prebuild", prebuildUsage, stdout)
	c.formatFlag()
	c.namespaceFlag()
	var r buildRequest
	c.flags.StringVar(&r.Kernel, "kernel", "", "release of the kernel, as uname -r will print it")
	c.flags.StringVar(&r.Toolkit, "toolkit-image", "", "image with the kernel's headers and the compiler that built it, such as OpenShift's Driver Toolkit")
	c.flags.StringVar(&r.OSTag, "os-tag", "", "the operating system's, as in rhcos4.18 (default: that of the GPU nodes; on OpenShift, of those that run the kernel)")
	c.flags.StringVar(&r.Arch, "arch", "", "amd64 or arm64 (default: that in the kernel's release, or that of the GPU nodes)")
	c.flags.StringVar(&r.Version, "driver-version", "", "version of the driver (default: spec.driver.version of the policy)")
	c.flags.StringVar(&r.Kind, "kind", "", "open or proprietary (default: kernelModuleType of the policy, else open)")
	c.flags.StringVar(&r.NVIDIADriver, "nvidia-driver", "", "name of the NVIDIADriver to build for, if the policy leaves drivers to them (default: the only one)")
	wait := c.flags.Bool("wait", true, "wait for the Job's end")
	timeout := c.flags.Duration("timeout", time.Hour, "how long to wait")
	dry := c.flags.Bool("dry-run", false, "print the Job and create nothing")
	if err := c.parse(args); err != nil {
		return err
	}
	switch {
	case r.Kernel == "" || r.Toolkit == "":
		return program.UsageErrorf("prebuild needs --kernel and --toolkit-image; see kubectl gpu prebuild --help")
	case r.Kind != "" && !slices.Contains(driver.ModuleKinds(), r.Kind):
		return program.UsageErrorf("--kind is %q; say open or proprietary", r.Kind)
	case r.Arch != "" && !slices.Contains(driver.Arches(), r.Arch):
		return program.UsageErrorf("--arch is %q; say amd64 or arm64", r.Arch)
	case *timeout <= 0:
		return program.UsageErrorf("--timeout must be above 0")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	policy, err := client.PolicyInForce(ctx)
	if err != nil {
		return err
	}
	if policy == nil {
		return errors.New("there is no ClusterPolicy, and so no driver to build: apply one")
	}
	if r.Namespace = c.namespace; r.Namespace == "" {
		r.Namespace = policy.Status.OperandNamespace() // not a guess: the Job gets a registry's credentials there
	}
	if r.Namespace == "" {
		return errors.New("the ClusterPolicy has no status of gpuready's operator: see that it runs, or name its namespace with -n")
	}
	job, err := planBuild(ctx, client, policy, r)
	if err != nil {
		return err
	}
	if *dry {
		return c.write(stdout, job, func(w io.Writer, _ style) error {
			text, err := yaml.Marshal(job)
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		})
	}
	if job, err = client.CreateJob(ctx, job); err != nil {
		return fmt.Errorf("create a Job in %s: %w", r.Namespace, err)
	}
	if !*wait {
		result := buildResultOf(job, nil)
		return c.write(stdout, result, result.text)
	}
	fmt.Fprintf(stderr, "Job %s/%s\n", job.Namespace, job.Name)
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done within %v (--timeout)", *timeout))
	defer cancel()
	result, err := waitForBuild(ctx, client, job, stderr)
	switch {
	case errors.Is(err, errBuildFailed) && c.output != "text":
		return errors.Join(program.WithExitCode(exitFailed, err), c.write(stdout, result, nil))
	case errors.Is(err, errBuildFailed):
		return program.WithExitCode(exitFailed, err)
	case err != nil:
		return err
	}
	return c.write(stdout, result, result.text)
}

// buildRequest describes what to build.
type buildRequest struct {
	Kernel    string // release
	Toolkit   string // image with the kernel's headers and the compiler that built it
	OSTag     string // default: that of the pools, if they have one
	Arch      string // default: the one in the kernel's release, or that of the pools
	Version   string // of the driver; default: the policy's
	Kind      string // default: the policy's kernelModuleType, or open
	Namespace string // of the operands

	NVIDIADriver string // default: the only one
}

// driverSource is a policy whose driver is to be built.
type driverSource struct {
	*v1.ClusterPolicy        // with the NVIDIADriver's driver, if that is its source
	owner             string // "ClusterPolicy gpu-cluster-policy"
	field             string // where the owner has the driver's fields: "spec.driver"
}

// findDriver returns the policy with the driver of the named NVIDIADriver, or of the only one, if the
// policy leaves drivers to them.
func findDriver(ctx context.Context, c *cluster.Client, policy *v1.ClusterPolicy, name string) (driverSource, error) {
	if !policy.Spec.Driver.UsesNVIDIADrivers() {
		if name != "" {
			return driverSource{}, fmt.Errorf("ClusterPolicy %s does not use NVIDIADrivers (spec.driver.useNvidiaDriverCRD): leave out --nvidia-driver", policy.Name)
		}
		return driverSource{policy, "ClusterPolicy " + policy.Name, "spec.driver"}, nil
	}
	drivers, err := c.NVIDIADrivers(ctx)
	if err != nil {
		return driverSource{}, fmt.Errorf("read NVIDIADrivers: %w", err)
	}
	var names []string
	for i := range drivers {
		d := &drivers[i]
		if d.Name == name || name == "" && len(drivers) == 1 {
			with := *policy
			with.Spec = *d.PolicySpec(&policy.Spec)
			return driverSource{&with, "NVIDIADriver " + d.Name, "spec"}, nil
		}
		names = append(names, d.Name)
	}
	switch {
	case len(drivers) == 0:
		return driverSource{}, fmt.Errorf("ClusterPolicy %s leaves drivers to NVIDIADrivers, and there is none: create one", policy.Name)
	case name == "":
		return driverSource{}, program.UsageErrorf("--nvidia-driver must name one of %s", strings.Join(names, ", "))
	}
	return driverSource{}, fmt.Errorf("there is no NVIDIADriver %s; there are %s", name, strings.Join(names, ", "))
}

// planBuild returns the Job for a request.
func planBuild(ctx context.Context, c *cluster.Client, policy *v1.ClusterPolicy, r buildRequest) (*batchv1.Job, error) {
	source, err := findDriver(ctx, c, policy, r.NVIDIADriver)
	if err != nil {
		return nil, err
	}
	spec := &source.Spec.Driver
	if spec.PrebuildRepository() == "" {
		return nil, fmt.Errorf("%s names no repository for modules: set %s.prebuild.repository, for example registry.example.com/gpu/driver", source.owner, source.field)
	}
	s := driver.BuildSpec{Policy: source.ClusterPolicy, Namespace: r.Namespace, Toolkit: r.Toolkit, Kernel: r.Kernel, OSTag: r.OSTag}
	if s.Version = cmp.Or(r.Version, driver.Version(spec.Version)); s.Version == "" {
		return nil, fmt.Errorf("the driver's version is unknown: %s.version of %s is %q, which is not a complete version; set --driver-version, for example 580.95.05", source.field, source.owner, spec.Version)
	}
	if s.Kind = cmp.Or(r.Kind, spec.KernelModuleType); !slices.Contains(driver.ModuleKinds(), s.Kind) {
		s.Kind = driver.ModuleKinds()[0]
	}
	if s.OpenShift, err = c.HasGroup(ctx, "security.openshift.io"); err != nil {
		return nil, fmt.Errorf("see whether the cluster is OpenShift: %w", err)
	}
	if s.OSTag == "" {
		if s.OSTag, err = osTag(policy.Status.Pools, r.Kernel, s.OpenShift); err != nil {
			return nil, err
		}
	}
	if s.Arch = cmp.Or(r.Arch, driver.KernelArch(r.Kernel)); s.Arch == "" {
		if s.Arch, err = arch(policy.Status.Pools, r.Kernel); err != nil {
			return nil, err
		}
	}
	if s.Image = builderImage(spec, s.Version, s.OSTag); s.Image == "" {
		return nil, fmt.Errorf("%s names no driver image with a driver in it: set repository and image in its %s to one that is made from gpuready/driver", source.owner, source.field)
	}
	if err := checkOwnImage(ctx, c, s); err != nil {
		return nil, err
	}
	return s.Job()
}

// builderImage returns the driver container with the driver's sources, which builds on nodes.
func builderImage(spec *v1.DriverSpec, version, osTag string) string {
	d := spec.ImageSpec
	// An image that is a whole reference, or has a digest, stays. Any other has the driver's
	// version as its tag.
	isWhole := d.Repository == "" && d.Version == "" && strings.ContainsAny(d.Image, "/:@")
	if hasDigest := strings.HasPrefix(d.Version, "sha256:"); !isWhole && !hasDigest {
		d.Version = version
	}
	ref := d.Ref(v1.ImageSpec{Image: "driver"})
	switch {
	case !strings.Contains(ref, "/"):
		return ""
	case strings.Contains(ref, "@"):
		return ref
	}
	return ref + "-" + osTag
}

// osTag returns the operating system of the pool with this kernel, or the only one of all pools.
// On OpenShift a kernel has its own operating system.
func osTag(pools []v1.PoolStatus, kernel string, openShift bool) (string, error) {
	here, all := poolValues(pools, kernel, func(p v1.PoolStatus) string { return p.OS })
	switch {
	case len(here) > 0:
		return here[0], nil
	case openShift:
		return "", fmt.Errorf("the operating system is unknown: no GPU node runs kernel %s yet, and an upgrade of OpenShift changes it; set --os-tag, for example rhcos4.18 or rhel9.6", kernel)
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return "", errors.New("the operating system is unknown: there is no GPU node yet; set --os-tag, for example rhcos4.18 or ubuntu22.04")
	}
	return "", fmt.Errorf("the operating system is ambiguous: GPU nodes have %s; set --os-tag", strings.Join(all, ", "))
}

// arch returns the architecture of the pools with this kernel or, if there are none, of all
// pools.
func arch(pools []v1.PoolStatus, kernel string) (string, error) {
	have, all := poolValues(pools, kernel, func(p v1.PoolStatus) string { return p.Arch })
	if len(have) == 0 {
		have = all
	}
	switch len(have) {
	case 1:
		return have[0], nil
	case 0:
		return "", errors.New("the architecture is unknown: there is no GPU node yet; set --arch, for example amd64")
	}
	return "", fmt.Errorf("the architecture is ambiguous: GPU nodes have %s; set --arch", strings.Join(have, ", "))
}

// poolValues returns the sorted values of the pools with this kernel, and of all pools.
func poolValues(pools []v1.PoolStatus, kernel string, of func(v1.PoolStatus) string) (here, all []string) {
	for _, p := range pools {
		if of(p) == "" {
			continue
		}
		all = append(all, of(p))
		if p.Kernel == kernel {
			here = append(here, of(p))
		}
	}
	slices.Sort(here)
	slices.Sort(all)
	return slices.Compact(here), slices.Compact(all)
}

// checkOwnImage refuses an image that is known not to be gpuready's. If no node runs an image
// yet, even if another tag of its repository is in use, the Job itself finds out.
func checkOwnImage(ctx context.Context, c *cluster.Client, s driver.BuildSpec) error {
	foreign := strings.HasPrefix(s.Image, "nvcr.io/nvidia/")
	sets, err := c.DaemonSets(ctx, s.Namespace)
	if err != nil {
		sets = nil // they are optional, and this client may not be allowed to read them
	}
	for _, set := range sets {
		for _, ctr := range set.Spec.Template.Spec.Containers {
			if ctr.Name == "nvidia-driver-ctr" && ctr.Image == s.Image {
				foreign = foreign || set.Labels[label.DriverContainer] != label.Product
			}
		}
	}
	if foreign {
		return fmt.Errorf("%s is no driver container of gpuready (label io.gpuready.driver), and only these build so: name an image in the driver's spec that is made from gpuready/driver", s.Image)
	}
	return nil
}
