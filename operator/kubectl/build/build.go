// Package build builds the kernel modules of a driver by a Job, before a node runs their kernel.
package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/kubectl/output"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/prebuild"
)

// Request describes what to build.
type Request struct {
	Kernel    string // release
	Toolkit   string // image with the kernel's headers and the compiler that built it
	OSTag     string // default: that of the pools, if they have one
	Arch      string // default: the one in the kernel's release, or that of the pools
	Version   string // of the driver; default: the policy's
	Kind      string // default: the policy's kernelModuleType, or open
	Namespace string // of the operands
}

// Result is the result of a build.
type Result struct {
	v1.PrebuiltStatus
	Namespace string `json:"namespace"`
	Digest    string `json:"digest,omitempty"` // of the pushed image, if the log may be read
}

// ErrFailed means that the Job has failed.
var ErrFailed = errors.New("the modules are not built")

// Plan returns the Job for a request.
func Plan(ctx context.Context, c *cluster.Client, policy *v1.ClusterPolicy, r Request) (*batchv1.Job, error) {
	spec := &policy.Spec.Driver
	if spec.PrebuildRepository() == "" {
		return nil, fmt.Errorf("ClusterPolicy %s names no repository for modules: set spec.driver.prebuild.repository, for example registry.example.com/gpu/driver", policy.Name)
	}
	s := prebuild.Spec{Policy: policy, Namespace: r.Namespace, Toolkit: r.Toolkit, Kernel: r.Kernel, OSTag: r.OSTag}
	if s.Version = cmp.Or(r.Version, driver.Version(spec.Version)); s.Version == "" {
		return nil, fmt.Errorf("the driver's version is unknown: spec.driver.version of ClusterPolicy %s is %q, which is not a complete version; set --driver-version, for example 580.95.05", policy.Name, spec.Version)
	}
	if s.Kind = cmp.Or(r.Kind, spec.KernelModuleType); !slices.Contains(prebuild.Kinds(), s.Kind) {
		s.Kind = prebuild.Kinds()[0]
	}
	var err error
	if s.OpenShift, err = c.HasGroup(ctx, "security.openshift.io"); err != nil {
		return nil, fmt.Errorf("see whether the cluster is OpenShift: %w", err)
	}
	if s.OSTag == "" {
		if s.OSTag, err = osTag(policy.Status.Pools, r.Kernel, s.OpenShift); err != nil {
			return nil, err
		}
	}
	if s.Arch = cmp.Or(r.Arch, prebuild.Arch(r.Kernel)); s.Arch == "" {
		if s.Arch, err = arch(policy.Status.Pools, r.Kernel); err != nil {
			return nil, err
		}
	}
	if s.Image = builderImage(spec, s.Version, s.OSTag); s.Image == "" {
		return nil, fmt.Errorf("ClusterPolicy %s names no driver image with a driver in it: set spec.driver.repository and image to one that is made from gpuready/driver", policy.Name)
	}
	if err := checkOwnImage(ctx, c, s); err != nil {
		return nil, err
	}
	return s.Job()
}

// builderImage returns the driver container with the driver's sources, which builds on nodes.
func builderImage(spec *v1.DriverSpec, version, osTag string) string {
	d := spec.ImageSpec
	if whole := d.Repository == "" && d.Version == "" && strings.ContainsAny(d.Image, "/:@"); !whole && !strings.HasPrefix(d.Version, "sha256:") {
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
func checkOwnImage(ctx context.Context, c *cluster.Client, s prebuild.Spec) error {
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
		return fmt.Errorf("%s is no driver container of gpuready (label io.gpuready.driver), and only these build so: name an image in spec.driver that is made from gpuready/driver", s.Image)
	}
	return nil
}

// pollEvery is the interval at which the Job is read.
const pollEvery = 2 * time.Second

// Wait waits for the end of a Job, and writes its progress to progress. If the Job has failed,
// the error wraps ErrFailed. An API server that does not respond is retried until ctx ends; one
// that refuses is not.
func Wait(ctx context.Context, c *cluster.Client, job *batchv1.Job, progress io.Writer) (Result, error) {
	last, r := "", Result{}
	for {
		now := ""
		current, pods, err := observe(ctx, c, job)
		switch {
		case ctx.Err() != nil:
		case permanent(err):
			return Result{}, err
		case err != nil:
			now = err.Error() + "; trying again"
		default:
			r = ResultOf(current, pods)
			now = cmp.Or(r.Message, stage(pods))
		}
		switch r.State {
		case v1.PrebuiltPresent:
			r.Digest = pushedDigest(ctx, c, job.Namespace, pods)
			return r, nil
		case v1.PrebuiltFailed:
			return r, fmt.Errorf("%w: Job %s/%s: %s", ErrFailed, job.Namespace, job.Name, r.Message)
		}
		if now != "" && now != last {
			last = now
			fmt.Fprintln(progress, now)
		}
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("%w; the Job continues, and kubectl gpu status shows its result", context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// observe reads a Job and its pods.
func observe(ctx context.Context, c *cluster.Client, job *batchv1.Job) (*batchv1.Job, []corev1.Pod, error) {
	current, err := c.Job(ctx, job.Namespace, job.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("read Job %s: %w", job.Name, err)
	}
	pods, err := c.Pods(ctx, job.Namespace, "", "job-name="+job.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the pods of Job %s: %w", job.Name, err)
	}
	return current, pods, nil
}

// permanent reports whether a retry would return the same error.
func permanent(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// ResultOf returns the result of a Job and its pods.
func ResultOf(job *batchv1.Job, pods []corev1.Pod) Result {
	r := Result{Namespace: job.Namespace}
	b, ok := prebuild.Observe(job)
	if !ok {
		return r
	}
	var observed []prebuild.Pod
	for i := range pods {
		if p, ok := prebuild.ObservePod(&pods[i]); ok {
			observed = append(observed, p)
		}
	}
	pushed := func(string) driver.Presence { return driver.Presence{State: driver.Present} }
	r.PrebuiltStatus = prebuild.Report([]prebuild.Build{b}, observed, pushed)[0]
	return r
}

// stage describes which container of the newest pod runs.
func stage(pods []corev1.Pod) string {
	if len(pods) == 0 {
		return "waiting for the Job's pod"
	}
	p := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.State.Running != nil {
			return "pod " + p.Name + ": " + map[string]string{"prepare": "copying the sources", "build": "compiling", "push": "pushing"}[s.Name]
		}
	}
	return "pod " + p.Name + " is being started"
}

// pushedDigest returns the digest that gpu-driver push has printed, or "" if it cannot be read.
func pushedDigest(ctx context.Context, c *cluster.Client, namespace string, pods []corev1.Pod) string {
	for _, p := range pods {
		if p.Status.Phase != corev1.PodSucceeded {
			continue
		}
		var output struct {
			Digest string `json:"digest"`
		}
		if text, err := c.Output(ctx, namespace, p.Name, "push"); err == nil && json.Unmarshal(text, &output) == nil {
			return output.Digest
		}
	}
	return ""
}

// Text writes the result for people.
func (r Result) Text(w io.Writer, _ output.Style) error {
	if r.State != v1.PrebuiltPresent {
		_, err := fmt.Fprintf(w, "Job %s/%s builds %s; kubectl gpu status shows its result\n", r.Namespace, r.Job, r.Image)
		return err
	}
	_, err := fmt.Fprint(w, r.Image+"\n", strings.TrimLeft(r.Digest+"\n", "\n"))
	return err
}
