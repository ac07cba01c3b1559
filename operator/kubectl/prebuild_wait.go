package main

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
)

// buildResult is the result of a build.
type buildResult struct {
	v1.PrebuiltStatus
	Namespace string `json:"namespace"`
	Digest    string `json:"digest,omitempty"` // of the pushed image, if the log may be read
}

// errBuildFailed means that the Job has failed.
var errBuildFailed = errors.New("the modules are not built")

// pollEvery is the interval at which the Job is read.
const pollEvery = 2 * time.Second

// waitForBuild waits for the end of a Job, and writes its progress to progress. If the Job has failed,
// the error wraps errBuildFailed. An API server that does not respond is retried until ctx ends; one
// that refuses is not.
func waitForBuild(ctx context.Context, c *cluster.Client, job *batchv1.Job, progress io.Writer) (buildResult, error) {
	last, r := "", buildResult{}
	for {
		now := ""
		current, pods, err := readBuild(ctx, c, job)
		switch {
		case ctx.Err() != nil:
		case permanent(err):
			return buildResult{}, err
		case err != nil:
			now = err.Error() + "; trying again"
		default:
			r = buildResultOf(current, pods)
			now = cmp.Or(r.Message, describePods(pods))
		}
		switch r.State {
		case v1.PrebuiltPresent:
			r.Digest = pushedDigest(ctx, c, job.Namespace, pods)
			return r, nil
		case v1.PrebuiltFailed:
			return r, fmt.Errorf("%w: Job %s/%s: %s", errBuildFailed, job.Namespace, job.Name, r.Message)
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

// readBuild reads a Job and its pods.
func readBuild(ctx context.Context, c *cluster.Client, job *batchv1.Job) (*batchv1.Job, []corev1.Pod, error) {
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

// buildResultOf returns the result of a Job and its pods.
func buildResultOf(job *batchv1.Job, pods []corev1.Pod) buildResult {
	r := buildResult{Namespace: job.Namespace}
	b, ok := driver.ObserveBuild(job)
	if !ok {
		return r
	}
	var observed []driver.BuildPod
	for i := range pods {
		if p, ok := driver.ObserveBuildPod(&pods[i]); ok {
			observed = append(observed, p)
		}
	}
	// Report asks for an image only if its Job has succeeded, and the Job has pushed it.
	pushed := func(string) driver.Presence { return driver.Presence{State: driver.Present} }
	r.PrebuiltStatus = driver.ReportBuilds([]driver.Build{b}, observed, pushed)[0]
	return r
}

// describePods describes which container of the newest pod runs.
func describePods(pods []corev1.Pod) string {
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
		var printed struct {
			Digest string `json:"digest"`
		}
		if text, err := c.Output(ctx, namespace, p.Name, "push"); err == nil && json.Unmarshal(text, &printed) == nil {
			return printed.Digest
		}
	}
	return ""
}

// text writes the result for people.
func (r buildResult) text(w io.Writer, _ style) error {
	if r.State != v1.PrebuiltPresent {
		_, err := fmt.Fprintf(w, "Job %s/%s builds %s; kubectl gpu status shows its result\n", r.Namespace, r.Job, r.Image)
		return err
	}
	_, err := fmt.Fprint(w, r.Image+"\n", strings.TrimLeft(r.Digest+"\n", "\n"))
	return err
}
