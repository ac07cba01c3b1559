package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/step"
)

// Command is a user's shell command. Its environment has the sample's number in
// GPU_PROVISION_SAMPLE and the node, if any, in GPU_PROVISION_NODE.
type Command string

// runCommand runs the command and keeps observing the cluster meanwhile. node may be "".
func (c Command) runCommand(ctx context.Context, s *Session, node string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commandWithin, fmt.Errorf("it has not ended within %v", commandWithin))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", string(c))
	cmd.Env = append(os.Environ(), "GPU_PROVISION_SAMPLE="+strconv.Itoa(s.sample), "GPU_PROVISION_NODE="+node)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case c := <-s.Observer.Changes():
			s.observeChange(c) // also while the command runs
		case err := <-ended:
			if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it left a process in the background
				return nil
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("command %q: %w: %s", string(c), err, sanitizeLine(outputEnd(out.String())))
		}
	}
}

// outputEnd returns the end of a command's output.
func outputEnd(text string) string {
	const most = 400
	text = strings.TrimSpace(text)
	return text[max(len(text)-most, 0):]
}

// Commands adds and removes nodes by a user's commands.
type Commands struct{ AddNode, RemoveNode Command }

// Add runs the command that adds a node.
func (p Commands) Add(ctx context.Context, s *Session) error { return p.AddNode.runCommand(ctx, s, "") }

// AddsGPUs reports true: the commands may do anything.
func (Commands) AddsGPUs() bool { return true }

// Remove runs the command that removes a node, once for each.
func (p Commands) Remove(ctx context.Context, s *Session, nodes []string) error {
	if p.RemoveNode == "" {
		return nil
	}
	if len(nodes) == 0 { // it was requested but did not appear
		return p.RemoveNode.runCommand(ctx, s, "")
	}
	for _, n := range nodes {
		if err := p.RemoveNode.runCommand(ctx, s, n); err != nil {
			return err
		}
	}
	return nil
}

// Restore does nothing: only the commands can undo what they did.
func (Commands) Restore(context.Context, *Session) error { return nil }

// MachineSet adds and removes nodes by the replicas of an OpenShift MachineSet.
type MachineSet struct {
	Namespace, Name string

	before   *int64          // its replicas before the first Add; nil: Add was not called
	machines map[string]bool // its Machines before the last Add
}

// AddsGPUs reports false: nodes are new.
func (*MachineSet) AddsGPUs() bool { return false }

const machinePath = "/apis/machine.openshift.io/v1beta1/namespaces/"

func (p *MachineSet) path() string {
	return machinePath + url.PathEscape(p.Namespace) + "/machinesets/" + url.PathEscape(p.Name)
}

// Add adds one to the replicas.
func (p *MachineSet) Add(ctx context.Context, s *Session) error {
	var set struct {
		Spec struct {
			Replicas *int64 `json:"replicas"`
		} `json:"spec"`
	}
	if err := s.Client.Get(ctx, p.path(), nil, &set); err != nil {
		return fmt.Errorf("read MachineSet %s/%s: %w", p.Namespace, p.Name, err)
	}
	now := int64(1) // the default of replicas
	if set.Spec.Replicas != nil {
		now = *set.Spec.Replicas
	}
	if p.before == nil {
		p.before = &now
	}
	p.machines = map[string]bool{}
	if err := p.eachMachine(ctx, s, func(m machine) error { p.machines[m.Metadata.Name] = true; return nil }); err != nil {
		return err
	}
	return p.setReplicas(ctx, s, now+1)
}

// setReplicas sets the replicas of the MachineSet.
func (p *MachineSet) setReplicas(ctx context.Context, s *Session, replicas int64) error {
	err := s.Client.Merge(ctx, p.path(), map[string]any{"spec": map[string]any{"replicas": replicas}})
	if err != nil {
		return fmt.Errorf("set MachineSet %s/%s to %d replicas: %w", p.Namespace, p.Name, replicas, err)
	}
	return nil
}

// Remove sets the replicas back and deletes the Machines that were created since Add.
func (p *MachineSet) Remove(ctx context.Context, s *Session, _ []string) error {
	return p.Restore(ctx, s)
}

// machine holds the fields of a Machine that are read.
type machine struct {
	Metadata struct {
		Name            string                  `json:"name"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
}

func (p *MachineSet) machinesPath() string {
	return machinePath + url.PathEscape(p.Namespace) + "/machines"
}

// eachMachine calls do for each Machine of the MachineSet.
func (p *MachineSet) eachMachine(ctx context.Context, s *Session, do func(machine) error) error {
	_, err := s.Client.List(ctx, p.machinesPath(), nil, func(raw json.RawMessage) error {
		var m machine
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		if !slices.ContainsFunc(m.Metadata.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "MachineSet" && o.Name == p.Name }) {
			return nil
		}
		return do(m)
	})
	if err != nil {
		return fmt.Errorf("list the Machines of MachineSet %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// Restore marks the Machines that were created since Add for deletion, and sets the replicas
// back.
func (p *MachineSet) Restore(ctx context.Context, s *Session) error {
	if p.before == nil {
		return nil
	}
	err := p.eachMachine(ctx, s, func(m machine) error {
		if p.machines[m.Metadata.Name] {
			return nil
		}
		mark := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"machine.openshift.io/delete-machine": "true"}}}
		return s.Client.Merge(ctx, p.machinesPath()+"/"+url.PathEscape(m.Metadata.Name), mark)
	})
	if err != nil {
		return err
	}
	return p.setReplicas(ctx, s, *p.before)
}

// NodeClaim adds and removes nodes by Karpenter NodeClaims, one for each sample.
type NodeClaim struct {
	Manifest map[string]any // as a person wrote it
	Path     string         // of its kind: /apis/karpenter.sh/v1/nodeclaims

	created []string // names of NodeClaims that may exist
}

// NewNodeClaim returns a NodeClaim with a manifest.
func NewNodeClaim(manifest map[string]any) (*NodeClaim, error) {
	version, _ := manifest["apiVersion"].(string)
	if kind, _ := manifest["kind"].(string); kind != "NodeClaim" || !strings.HasPrefix(version, "karpenter.sh/") {
		return nil, fmt.Errorf("the manifest is a %v of %q; want a NodeClaim of karpenter.sh", manifest["kind"], version)
	}
	if _, ok := manifest["spec"].(map[string]any); !ok {
		return nil, errors.New("the manifest has no spec")
	}
	return &NodeClaim{Manifest: manifest, Path: "/apis/" + version + "/nodeclaims"}, nil
}

// Add creates a NodeClaim.
func (p *NodeClaim) Add(ctx context.Context, s *Session) error {
	name := "gpu-provision-" + s.sampleLabel()
	old, _ := p.Manifest["metadata"].(map[string]any)
	labels := map[string]any{step.WorkloadLabel: s.sampleLabel()}
	if labelsBefore, ok := old["labels"].(map[string]any); ok {
		maps.Copy(labels, labelsBefore)
	}
	claim := map[string]any{"apiVersion": p.Manifest["apiVersion"], "kind": "NodeClaim", "spec": p.Manifest["spec"],
		"metadata": map[string]any{"name": name, "labels": labels, "annotations": old["annotations"]}}
	p.created = append(p.created, name)
	if err := s.create(ctx, p.Path, claim); err != nil {
		return fmt.Errorf("create NodeClaim %s: %w", name, err)
	}
	return nil
}

// AddsGPUs reports false: nodes are new.
func (*NodeClaim) AddsGPUs() bool { return false }

// Remove deletes the NodeClaims.
func (p *NodeClaim) Remove(ctx context.Context, s *Session, _ []string) error {
	return p.Restore(ctx, s)
}

// Restore deletes the NodeClaims.
func (p *NodeClaim) Restore(ctx context.Context, s *Session) error {
	for len(p.created) > 0 {
		if err := s.Client.Delete(ctx, p.Path+"/"+p.created[0], nil, nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete NodeClaim %s: %w", p.created[0], err)
		}
		p.created = p.created[1:]
	}
	return nil
}
