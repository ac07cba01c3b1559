// Package migrate hands the nodes of a cluster over from NVIDIA's GPU Operator to gpuready's, one
// by one, and back. Read takes a snapshot of the cluster, NewPlan computes from it who serves each
// node and what to do next, and a Mover hands a node over.
//
// Two labels of a Node say who serves it. nvidia.com/gpu.deploy.operands=false makes NVIDIA's
// operator take its operands off the node, and gpuready.io/operator=gpuready gives the node to
// gpuready's operator. Both stacks use the same sockets and driver, so a node belongs to nobody in
// between: gpuready.io/operator=moving marks it until the pods of one stack are gone. All state is
// in these labels, so an interrupted migration is continued by running it again.
package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// Moving is the value of label.HandOver on a node that belongs to neither operator, because the pods
// of one are still to go.
const Moving = "moving"

// maxText bounds a text that the cluster returned, in bytes.
const maxText = 512

func clean(s string) string { return record.Clean(s, maxText) }

// Snapshot holds what the plan is computed from.
type Snapshot struct {
	NVIDIA   []Operator // Deployments of NVIDIA's operator
	GPUReady []Operator // Deployments of gpuready's operator
	// Definition is the owner of the definition of ClusterPolicies: "nvidia", "gpuready", or "" if
	// there is none.
	Definition string
	Policies   []Policy
	InForce    *v1.ClusterPolicy // the policy that both operators use; nil: none
	Operands   Operands
	Handlers   map[string]string // handlers of RuntimeClasses that are not gpuready's, by the class
	Classes    map[string]bool   // the RuntimeClasses; true if they give containers GPUs
	Claims     map[string]bool   // ResourceClaims as namespace/name; true if a GPU is allocated. nil: not known
	Driver     driver.Facts      // for the choice of drivers; every image is assumed to exist
	Nodes      []cluster.NodeView
	// Drivers selects the NVIDIADriver of each node; nil: the policy has the driver of all.
	Drivers *driver.Selection
	Notes   []string // what could not be read
	// theirs and ours are the namespaces of NVIDIA's and gpuready's operators and operands. Labels
	// count only there: anybody may set them elsewhere.
	theirs, ours []string
}

// Operator is a Deployment of an operator.
type Operator struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Version   string `json:"version,omitempty"`
	Runs      bool   `json:"runs"`  // it has pods, or is to have some
	Ready     bool   `json:"ready"` // it has a ready pod
}

// String returns the Deployment as namespace/name.
func (o Operator) String() string { return o.Namespace + "/" + o.Name }

// Policy is a ClusterPolicy, as far as the migration is concerned.
type Policy struct {
	Name    string `json:"name"`
	InForce bool   `json:"inForce"` // both operators use the oldest policy
	State   string `json:"state,omitempty"`
	// Refused lists why gpuready cannot use the policy.
	Refused []string `json:"refused,omitempty"`
	// Pruned lists the fields that gpuready's definition does not have. The API server drops them
	// from the policy when that definition replaces NVIDIA's.
	Pruned []string `json:"pruned,omitempty"`
	// Unserved lists the fields without effect, each with the reason and what to do.
	Unserved []string `json:"unserved,omitempty"`
}

// Operands are the DaemonSets of both stacks.
type Operands struct {
	NVIDIA   []appsv1.DaemonSet // those that a label nvidia.com/gpu.deploy.… places
	GPUReady []appsv1.DaemonSet
}

// Read takes a snapshot. Only GPU nodes are in it.
func Read(ctx context.Context, c *cluster.Client) (*Snapshot, error) {
	s := &Snapshot{}
	if err := s.readOperators(ctx, c); err != nil {
		return nil, err
	}
	if err := s.readPolicies(ctx, c); err != nil {
		return nil, err
	}
	sets, err := c.AllDaemonSets(ctx)
	if err != nil {
		return nil, fmt.Errorf("read DaemonSets: %w", err)
	}
	s.addOperands(sets)
	s.readDrivers(ctx, c)
	s.readHandlers(ctx, c)
	s.readClaims(ctx, c)
	if s.Driver.OpenShift, err = c.HasGroup(ctx, "security.openshift.io"); err != nil {
		s.note("whether the cluster is OpenShift", err)
	}
	nodes, err := c.Nodes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read Nodes: %w", err)
	}
	for i := range nodes {
		if !fleet.Observe(&nodes[i]).GPU {
			continue
		}
		pods, err := c.PodsOn(ctx, nodes[i].Name)
		if err != nil {
			return nil, fmt.Errorf("read the pods on %s: %w", nodes[i].Name, err)
		}
		s.Nodes = append(s.Nodes, cluster.NodeView{Node: &nodes[i], Pods: pods})
	}
	slices.SortFunc(s.Nodes, func(a, b cluster.NodeView) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	return s, nil
}

// readOperators reads the Deployments of both operators. They count if they may write Nodes, as
// for gpuready's operator: anybody may choose the names and labels.
func (s *Snapshot) readOperators(ctx context.Context, c *cluster.Client) error {
	for _, name := range []string{label.NVIDIADeployment, label.Deployment} {
		all, err := c.DeploymentsNamed(ctx, name)
		if err != nil {
			return fmt.Errorf("read Deployments: %w", err)
		}
		for i := range all {
			d := &all[i]
			product := d.Labels[label.PartOf] == label.Product
			switch {
			case !product && name != label.NVIDIADeployment, !s.writesNodes(ctx, c, d):
			case product:
				s.GPUReady, s.ours = append(s.GPUReady, operatorOf(d)), append(s.ours, d.Namespace, cluster.OperandNamespace(d))
				s.Driver = driverFacts(d)
			default:
				s.NVIDIA, s.theirs = append(s.NVIDIA, operatorOf(d)), append(s.theirs, d.Namespace)
			}
		}
	}
	return nil
}

// writesNodes reports whether a Deployment may write Nodes. It is true if that cannot be read.
func (s *Snapshot) writesNodes(ctx context.Context, c *cluster.Client, d *appsv1.Deployment) bool {
	account := d.Spec.Template.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	may, err := c.MayWriteNodes(ctx, d.Namespace, account)
	if err != nil {
		s.note("whether Deployment "+d.Namespace+"/"+d.Name+" may write Nodes", err)
	}
	return may || err != nil
}

func (s *Snapshot) note(what string, err error) {
	s.Notes = append(s.Notes, clean(fmt.Sprintf("%s cannot be read: %v", what, err)))
}

func operatorOf(d *appsv1.Deployment) Operator {
	wanted := d.Spec.Replicas == nil || *d.Spec.Replicas > 0
	return Operator{Namespace: d.Namespace, Name: d.Name, Version: versionOf(d), Runs: wanted || d.Status.Replicas > 0, Ready: wanted && d.Status.AvailableReplicas > 0}
}

// driverFacts returns what gpuready's operator chooses drivers by, from its variables.
func driverFacts(d *appsv1.Deployment) driver.Facts {
	env := map[string]string{}
	for _, container := range d.Spec.Template.Spec.Containers {
		for _, e := range container.Env {
			env[e.Name] = e.Value
		}
	}
	facts := driver.Facts{
		Images:   v1.ImageSpec{Repository: env["IMAGE_REPOSITORY"], Version: env["IMAGE_VERSION"]},
		Toolkit:  func(rhcos string) (string, bool) { return "driver-toolkit:" + rhcos, true },
		Registry: func(string) driver.Presence { return driver.Presence{State: driver.Present} },
	}
	if release, err := nvidia.FindRelease(env["NVIDIA_RELEASE"]); err == nil {
		facts.NVIDIA = driver.NVIDIAImages(release, env["NVIDIA_REGISTRY"])["driver"]
	}
	return facts
}

// versionTag matches tags such as v24.3.0.
var versionTag = regexp.MustCompile(`^v?[0-9]+\.[0-9]`)

// versionOf returns an operator's release: by the image's tag, else by the label of OLM or of Helm.
func versionOf(d *appsv1.Deployment) string {
	for _, container := range d.Spec.Template.Spec.Containers {
		image, _, _ := strings.Cut(container.Image, "@")
		if tag := image[strings.LastIndex(image, ":")+1:]; versionTag.MatchString(tag) && !strings.Contains(tag, "/") {
			return clean(tag)
		}
	}
	if _, version, found := strings.Cut(d.Labels["olm.owner"], "."); found {
		return clean(version)
	}
	return clean(d.Labels["app.kubernetes.io/version"])
}

// readPolicies reads the ClusterPolicies and the owner of their definition.
func (s *Snapshot) readPolicies(ctx context.Context, c *cluster.Client) error {
	definition, err := c.Definition(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		s.note("the CustomResourceDefinition of ClusterPolicies", err)
	case definition.Labels[label.PartOf] == label.Product:
		s.Definition = label.Product
	default:
		s.Definition = "nvidia"
	}
	texts, err := c.PolicyTexts(ctx)
	if err != nil {
		return fmt.Errorf("read ClusterPolicies: %w", err)
	}
	s.addPolicies(texts)
	return nil
}

// readDrivers reads the NVIDIADrivers if the policy in force leaves drivers to them.
func (s *Snapshot) readDrivers(ctx context.Context, c *cluster.Client) {
	if s.InForce == nil || !s.InForce.Spec.Driver.UsesNVIDIADrivers() {
		return
	}
	found, err := c.NVIDIADrivers(ctx)
	unread := ""
	if err != nil {
		s.note("NVIDIADrivers", err)
		unread = err.Error()
	}
	var all []*v1alpha1.NVIDIADriver
	for i := range found {
		all = append(all, &found[i])
	}
	s.Drivers = driver.NewSelection(&s.InForce.Spec, all, unread)
}

func (s *Snapshot) addPolicies(texts []json.RawMessage) {
	var decoded []v1.ClusterPolicy
	for _, text := range texts {
		var p v1.ClusterPolicy
		unknown, err := config.Ignoring(text, &p, "")
		if err != nil {
			var meta metav1.PartialObjectMetadata
			_ = json.Unmarshal(text, &meta)
			s.Policies = append(s.Policies, Policy{Name: meta.Name, Refused: []string{clean(err.Error())}})
			continue
		}
		found := Policy{Name: p.Name, State: clean(string(p.Status.State))}
		for _, line := range p.Unserved() {
			found.Unserved = append(found.Unserved, clean(line))
		}
		for _, key := range unknown {
			if strings.HasPrefix(key.Path, "spec.") {
				found.Pruned = append(found.Pruned, clean(key.Path))
			}
		}
		decoded, s.Policies = append(decoded, p), append(s.Policies, found)
	}
	if s.InForce = cluster.InForce(decoded); s.InForce != nil {
		for i := range s.Policies {
			s.Policies[i].InForce = s.Policies[i].Name == s.InForce.Name
		}
		if ns := s.InForce.Status.OperandNamespace(); ns != "" {
			s.ours = append(s.ours, ns)
		}
	}
}

// addOperands sorts the DaemonSets that a policy owns by their operator. They are in its namespaces.
// If the operator is uninstalled, these are not known: then the DaemonSets that it has left tell them.
func (s *Snapshot) addOperands(sets []appsv1.DaemonSet) {
	theirs, ours := s.theirs, s.ours
	for i := range sets {
		set := &sets[i]
		owner := metav1.GetControllerOf(set)
		product := set.Labels[label.PartOf] == label.Product
		switch {
		case owner == nil || !strings.HasPrefix(owner.APIVersion, v1.Group+"/"):
		case product && (len(ours) == 0 || slices.Contains(ours, set.Namespace)):
			s.Operands.GPUReady, s.ours = append(s.Operands.GPUReady, *set), append(s.ours, set.Namespace)
		case !product && isPlaced(set) && (len(theirs) == 0 || slices.Contains(theirs, set.Namespace)):
			s.Operands.NVIDIA, s.theirs = append(s.Operands.NVIDIA, *set), append(s.theirs, set.Namespace)
		}
	}
}

// isPlaced reports whether a label of the operator places a DaemonSet's pods.
func isPlaced(set *appsv1.DaemonSet) bool {
	for key := range set.Spec.Template.Spec.NodeSelector {
		if strings.HasPrefix(key, label.Deploy) {
			return true
		}
	}
	return false
}

// readHandlers reads the RuntimeClasses. The handlers of gpuready's own follow the nodes' handlers.
func (s *Snapshot) readHandlers(ctx context.Context, c *cluster.Client) {
	classes, err := c.RuntimeClasses(ctx)
	if err != nil {
		s.note("RuntimeClasses", err)
		return
	}
	s.Handlers, s.Classes = map[string]string{}, map[string]bool{}
	for _, class := range classes {
		s.Classes[class.Name] = upgrade.GPUHandler(class.Handler)
		if class.Labels[label.PartOf] != label.Product {
			s.Handlers[class.Name] = class.Handler
		}
	}
}

// readClaims reads which ResourceClaims have a GPU.
func (s *Snapshot) readClaims(ctx context.Context, c *cluster.Client) {
	s.Claims = nil
	claims, err := c.ResourceClaims(ctx)
	if err != nil {
		s.note("ResourceClaims", err)
		return
	}
	s.Claims = map[string]bool{}
	for _, claim := range claims {
		_, s.Claims[claim.GetNamespace()+"/"+claim.GetName()] = upgrade.ObserveClaim(claim)
	}
}
