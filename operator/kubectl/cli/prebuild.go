package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/build"
	"github.com/gpuready/gpuready/operator/kubectl/explain"
	"github.com/gpuready/gpuready/operator/kubectl/output"
	"github.com/gpuready/gpuready/operator/prebuild"
)

const prebuildUsage = `Build the driver's kernel modules for a kernel that no node runs yet, by a Job in the
cluster, and push them to the registry that spec.driver.prebuild of the ClusterPolicy
names. Nodes that boot this kernel pull them and compile nothing. The Job needs no GPU. The
driver's image must be one of gpuready's own, with the driver's sources.

It waits for the Job's end and prints the image and its digest or, if the Job fails, the
message of the failed container. kubectl gpu status shows everything that was built.

Examples:
  kubectl gpu prebuild --kernel 5.14.0-427.50.1.el9_4.x86_64 --os-tag rhcos4.18 \
    --toolkit-image $(oc adm release info 4.18.1 --image-for=driver-toolkit)
  kubectl gpu prebuild --kernel 6.8.0-100-generic --toolkit-image registry.example.com/headers:6.8.0-100 --dry-run
`

func prebuildModules(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := newCommand("prebuild", prebuildUsage, stdout)
	c.formatFlag()
	c.namespaceFlag()
	var r build.Request
	c.flags.StringVar(&r.Kernel, "kernel", "", "release of the kernel, as uname -r will print it")
	c.flags.StringVar(&r.Toolkit, "toolkit-image", "", "image with the kernel's headers and the compiler that built it, such as OpenShift's Driver Toolkit")
	c.flags.StringVar(&r.OSTag, "os-tag", "", "the operating system's, as in rhcos4.18 (default: that of the GPU nodes; on OpenShift, of those that run the kernel)")
	c.flags.StringVar(&r.Arch, "arch", "", "amd64 or arm64 (default: that in the kernel's release, or that of the GPU nodes)")
	c.flags.StringVar(&r.Version, "driver-version", "", "version of the driver (default: spec.driver.version of the policy)")
	c.flags.StringVar(&r.Kind, "kind", "", "open or proprietary (default: kernelModuleType of the policy, else open)")
	wait := c.flags.Bool("wait", true, "wait for the Job's end")
	timeout := c.flags.Duration("timeout", time.Hour, "how long to wait")
	dry := c.flags.Bool("dry-run", false, "print the Job and create nothing")
	if err := c.parse(args); err != nil {
		return err
	}
	switch {
	case r.Kernel == "" || r.Toolkit == "":
		return program.UsageErrorf("prebuild needs --kernel and --toolkit-image; see kubectl gpu prebuild --help")
	case r.Kind != "" && !slices.Contains(prebuild.Kinds(), r.Kind):
		return program.UsageErrorf("--kind is %q; say open or proprietary", r.Kind)
	case r.Arch != "" && !slices.Contains(prebuild.Arches(), r.Arch):
		return program.UsageErrorf("--arch is %q; say amd64 or arm64", r.Arch)
	case *timeout <= 0:
		return program.UsageErrorf("--timeout must be above 0")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	policies, err := client.Policies(ctx)
	if err != nil {
		return fmt.Errorf("read ClusterPolicies: %w", err)
	}
	policy := explain.InForce(policies)
	if policy == nil {
		return errors.New("there is no ClusterPolicy, and so no driver to build: apply one")
	}
	if r.Namespace = c.namespace; r.Namespace == "" {
		r.Namespace = policy.Status.Namespace
	}
	if r.Namespace == "" {
		return errors.New("the ClusterPolicy has no status yet: see that the operator runs, or name its namespace with -n")
	}
	job, err := build.Plan(ctx, client, policy, r)
	if err != nil {
		return err
	}
	if *dry {
		return c.write(stdout, job, func(w io.Writer, _ output.Style) error {
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
		result := build.ResultOf(job, nil)
		return c.write(stdout, result, result.Text)
	}
	fmt.Fprintf(stderr, "Job %s/%s\n", job.Namespace, job.Name)
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done within %v (--timeout)", *timeout))
	defer cancel()
	result, err := build.Wait(ctx, client, job, stderr)
	switch {
	case errors.Is(err, build.ErrFailed) && c.output == "json":
		return errors.Join(program.WithExitCode(exitFailed, err), output.JSON(stdout, result))
	case errors.Is(err, build.ErrFailed):
		return program.WithExitCode(exitFailed, err)
	case err != nil:
		return err
	}
	return c.write(stdout, result, result.Text)
}
