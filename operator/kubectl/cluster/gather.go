package cluster

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/version"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// GatherBounds limit what is collected.
type GatherBounds struct {
	LogLines int // of a container
	LogBytes int // of a container
	LogNodes int // nodes whose pods' logs are read; those that are not ready come first
}

// GatherConfig configures what to collect.
type GatherConfig struct {
	Client    *Client
	Namespace string // of the operands; "": that of the policy
	Bounds    GatherBounds
	Now       time.Time
	Progress  io.Writer // receives one line for each step
}

// gatherer writes the archive.
type gatherer struct {
	GatherConfig
	tar        *tar.Writer
	root       string
	failed     []string // what could not be read
	archiveErr error    // from writing the archive
}

// Gather writes a .tar.gz archive to w with the information needed to find out why GPUs cannot be
// used. It reads no Secret, and blanks what looks like a secret in anything it reads. It returns
// what could not be read; an error means that the archive is incomplete.
func Gather(ctx context.Context, w io.Writer, c GatherConfig) (unread []string, err error) {
	zip := gzip.NewWriter(w)
	g := &gatherer{GatherConfig: c, tar: tar.NewWriter(zip), root: "gpuready-must-gather-" + c.Now.UTC().Format("20060102-150405")}
	g.collect(ctx)
	g.addFile("errors.txt", []byte(strings.Join(append(g.failed, ""), "\n")))
	return g.failed, errors.Join(g.archiveErr, ctx.Err(), g.tar.Close(), zip.Close())
}

func (g *gatherer) printf(format string, args ...any) { fmt.Fprintf(g.Progress, format+"\n", args...) }

func (g *gatherer) recordMissing(what string, err error) {
	line := fmt.Sprintf("%s: %v", what, err)
	g.failed = append(g.failed, line)
	g.printf("! %s", line)
}

// addFile adds a file, with secrets blanked.
func (g *gatherer) addFile(name string, data []byte) {
	data = blank(data)
	if g.archiveErr == nil {
		g.archiveErr = g.tar.WriteHeader(&tar.Header{Name: path.Join(g.root, name), Mode: 0o600, Size: int64(len(data)), ModTime: g.Now, Format: tar.FormatPAX})
	}
	if g.archiveErr == nil {
		_, g.archiveErr = g.tar.Write(data)
	}
}

func (g *gatherer) addJSON(name string, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		g.recordMissing(name, err)
		return
	}
	g.addFile(name, append(data, '\n'))
}

// read reads objects and adds them to the archive.
func read[T any](g *gatherer, what, file string, fetch func() ([]T, error), clean func(*T)) []T {
	g.printf("%s", what)
	all, err := fetch()
	if err != nil {
		g.recordMissing(what, err)
	}
	if err != nil && len(all) == 0 {
		return nil
	}
	for i := range all {
		clean(&all[i])
	}
	g.addJSON(file, all)
	return all
}

func (g *gatherer) collect(ctx context.Context) {
	c := g.Client
	g.versions(ctx)
	policies := read(g, "ClusterPolicies", "clusterpolicies.json", func() ([]v1.ClusterPolicy, error) { return c.Policies(ctx) }, func(p *v1.ClusterPolicy) { cleanMeta(&p.ObjectMeta) })
	namespace := g.Namespace
	policy := InForce(policies)
	if namespace == "" {
		namespace = c.defaultNamespace(ctx, policy)
	}
	if p := policy; p != nil {
		if p.Spec.Driver.UsesNVIDIADrivers() {
			read(g, "NVIDIADrivers", "nvidiadrivers.json", func() ([]v1alpha1.NVIDIADriver, error) { return c.NVIDIADrivers(ctx) }, func(d *v1alpha1.NVIDIADriver) { cleanMeta(&d.ObjectMeta) })
		}
	}
	nodes := read(g, "GPU nodes", "nodes.json", func() ([]corev1.Node, error) { return c.Nodes(ctx, label.Present+"=true") }, cleanNode)
	read(g, "DaemonSets in "+namespace, "daemonsets.json", func() ([]any, error) {
		all, err := c.DaemonSets(ctx, namespace)
		for i := range all {
			cleanMeta(&all[i].ObjectMeta)
			cleanPod(&all[i].Spec.Template.Spec)
		}
		return anyOf(all), err
	}, func(*any) {})
	read(g, "Deployments in "+namespace, "deployments.json", func() ([]any, error) {
		all, err := c.Deployments(ctx, namespace)
		for i := range all {
			cleanMeta(&all[i].ObjectMeta)
			cleanPod(&all[i].Spec.Template.Spec)
		}
		return anyOf(all), err
	}, func(*any) {})
	pods := read(g, "Pods in "+namespace, "pods.json", func() ([]corev1.Pod, error) { return c.Pods(ctx, namespace, "", label.PartOf+"="+label.Product) }, func(p *corev1.Pod) {
		cleanMeta(&p.ObjectMeta)
		cleanPod(&p.Spec)
	})
	g.claims(ctx)
	clean := func(e *corev1.Event) { cleanMeta(&e.ObjectMeta) }
	read(g, "Events in "+namespace, "events.json", func() ([]corev1.Event, error) { return c.Events(ctx, namespace, "") }, clean)
	read(g, "Events of Nodes", "node-events.json", func() ([]corev1.Event, error) {
		return c.Events(ctx, corev1.NamespaceDefault, "involvedObject.kind=Node")
	}, clean)
	g.logs(ctx, pods, nodes)
}

// claims adds what belongs to Dynamic Resource Allocation: the ResourceSlices of the DRA driver, all
// DeviceClasses, and the claims that have its devices. Configurations in claims are left out.
func (g *gatherer) claims(ctx context.Context) {
	c := g.Client
	read(g, "ResourceSlices of "+draDriver, "resourceslices.json", func() ([]resourcev1.ResourceSlice, error) { return c.ResourceSlices(ctx, "") }, func(s *resourcev1.ResourceSlice) { cleanMeta(&s.ObjectMeta) })
	read(g, "DeviceClasses", "deviceclasses.json", func() ([]resourcev1.DeviceClass, error) { return c.DeviceClasses(ctx) }, func(d *resourcev1.DeviceClass) { cleanMeta(&d.ObjectMeta) })
	read(g, "ResourceClaims of "+draDriver, "resourceclaims.json", func() ([]resourcev1.ResourceClaim, error) { return c.GPUClaims(ctx) }, func(r *resourcev1.ResourceClaim) {
		cleanMeta(&r.ObjectMeta)
		r.Spec.Devices.Config = nil
		if r.Status.Allocation != nil {
			r.Status.Allocation.Devices.Config = nil
		}
	})
}

func anyOf[T any](all []T) (some []any) {
	for _, v := range all {
		some = append(some, v)
	}
	return some
}

func (g *gatherer) versions(ctx context.Context) {
	g.printf("versions")
	all := map[string]json.RawMessage{"kubectl-gpu": json.RawMessage(fmt.Sprintf("%q", version.String()))}
	for name, where := range map[string]string{"kubernetes": "/version", "clusterPolicyAPI": "/apis/" + v1.Group + "/" + v1.Version} {
		data, err := g.Client.Raw(ctx, where, nil)
		switch {
		case err != nil:
			g.recordMissing(where, err)
		case !json.Valid(data):
			g.recordMissing(where, errors.New("no JSON"))
		default:
			all[name] = data
		}
	}
	g.addJSON("versions.json", all)
}

// logs adds the logs of the operator, and of the pods on the most relevant nodes.
func (g *gatherer) logs(ctx context.Context, pods []corev1.Pod, nodes []corev1.Node) {
	wanted := g.logNodes(pods, nodes)
	for _, p := range pods {
		if node := p.Spec.NodeName; len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Kind == "DaemonSet" && !wanted[node] {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		g.printf("log of %s", p.Name)
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
				g.log(ctx, p, s.Name, false)
			}
			if s.RestartCount > 0 {
				g.log(ctx, p, s.Name, true)
			}
		}
	}
}

func (g *gatherer) log(ctx context.Context, p corev1.Pod, container string, previous bool) {
	name := container + ".log"
	if previous {
		name = container + ".previous.log"
	}
	data, err := g.Client.Log(ctx, p.Namespace, p.Name, container, previous, g.Bounds.LogLines, g.Bounds.LogBytes)
	if err != nil {
		g.recordMissing("log of "+p.Name+"/"+name, err)
		return
	}
	g.addFile(path.Join("logs", p.Name, name), data)
}

// logNodes returns the nodes whose pods' logs are read, by name. Nodes with pods that are not
// ready, or whose condition GPUReady is not True, come first.
func (g *gatherer) logNodes(pods []corev1.Pod, nodes []corev1.Node) map[string]bool {
	bad := map[string]bool{}
	for _, n := range nodes {
		good := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "GPUReady" && c.Status == corev1.ConditionTrue })
		bad[n.Name] = !good
	}
	for i := range pods {
		if p := progress.ObservePod(&pods[i]); p.Node != "" {
			bad[p.Node] = bad[p.Node] || !p.Ready && pods[i].Status.Phase != corev1.PodSucceeded
		}
	}
	names := []string{}
	for name := range bad {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if bad[a] != bad[b] {
			if bad[a] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	if left := len(names) - g.Bounds.LogNodes; left > 0 {
		g.recordMissing("logs", fmt.Errorf("those of %d nodes are left out (--log-nodes)", left))
		names = names[:g.Bounds.LogNodes]
	}
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	return all
}

func cleanMeta(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	delete(m.Annotations, corev1.LastAppliedConfigAnnotation)
}
