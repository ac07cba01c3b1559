package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// Machines creates and removes the machines of a group, as a cloud does.
type Machines interface {
	// Add creates the machine of that name and returns when its node is Ready. If it fails, nothing
	// of the machine is left.
	Add(ctx context.Context, name string) error
	// Remove removes a machine and its Node object.
	Remove(ctx context.Context, name string) error
}

// Group describes the one node group of a provider.
type Group struct {
	Name     string      // of the group, prefix of its machines' names
	Max      int         // maximum number of machines; the minimum is 0
	Template corev1.Node // the expected properties of a new node
	// GPULabel is the label with which the cloud marks GPU nodes, or "" if it has none.
	GPULabel string
}

// ProviderID returns the ID of a group's machine, which its kubelet must register.
func ProviderID(machine string) string { return scheme + machine }

const scheme = "gpuready-test://"

// Provider implements the Cluster Autoscaler's external gRPC interface for one node group.
type Provider struct {
	group    Group
	machines Machines
	log      *slog.Logger

	ctx     context.Context // of the machines being created or removed
	cancel  context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	made    int // number of machines ever requested; the last one has this number
	states  map[string]*machineState
	history CallHistory
}

// machineState is the state of one machine, by its name.
type machineState struct {
	state int32
	err   error // why it could not be created
}

// States of an instance, as the protocol numbers them.
const (
	running  = 1
	creating = 2
	deleting = 3
)

// CallHistory records an autoscaler's calls to a provider.
type CallHistory struct {
	Loops     int // number of its control loops
	Increases []Request
	Deletes   []Request
}

// Request is a request that changed the group.
type Request struct {
	At       time.Time
	Machines []string
}

// NewProvider creates a provider. log may be nil.
func NewProvider(group Group, machines Machines, log *slog.Logger) *Provider {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{group: group, machines: machines, log: log, states: map[string]*machineState{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close cancels the creation of machines and waits for that. Running machines stay.
func (p *Provider) Close() {
	p.cancel()
	p.working.Wait()
}

// History returns the calls so far.
func (p *Provider) History() CallHistory {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.history
	h.Increases, h.Deletes = slices.Clone(h.Increases), slices.Clone(h.Deletes)
	return h
}

// Machines returns the names of the machines that the group has or is creating.
func (p *Provider) Machines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted()
}

// wanted returns the machines that count for the group's size.
func (p *Provider) wanted() []string {
	var names []string
	for name, m := range p.states {
		if m.state != deleting {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// register registers p as the CloudProvider service of a server.
func (p *Provider) register(s *grpc.Server) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider",
		HandlerType: (*any)(nil),
		// Missing methods are optional: gRPC responds that they are not implemented.
		Methods: []grpc.MethodDesc{
			method("NodeGroups", p.nodeGroups),
			method("NodeGroupForNode", p.groupForNode),
			method("GPULabel", func(*empty) (*gpuLabel, error) { return &gpuLabel{Label: p.group.GPULabel}, nil }),
			method("GetAvailableGPUTypes", func(*empty) (*empty, error) { return &empty{}, nil }),
			method("Cleanup", func(*empty) (*empty, error) { return &empty{}, nil }),
			method("Refresh", p.refresh),
			method("NodeGroupTargetSize", p.targetSize),
			method("NodeGroupIncreaseSize", p.increase),
			method("NodeGroupDeleteNodes", p.delete),
			method("NodeGroupDecreaseTargetSize", p.decrease),
			method("NodeGroupNodes", p.nodes),
			method("NodeGroupTemplateNodeInfo", p.template),
		},
	}, p)
}

// method turns a function into a gRPC method.
func method[In, Out any](name string, response func(*In) (*Out, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		return response(in)
	}}
}

func (p *Provider) nodeGroups(*empty) (*nodeGroups, error) {
	return &nodeGroups{NodeGroups: []*nodeGroup{p.describe()}}, nil
}

func (p *Provider) describe() *nodeGroup {
	return &nodeGroup{ID: p.group.Name, MaxSize: int32(p.group.Max), Debug: p.group.Name}
}

// groupForNode recognizes the group's machines by their IDs; the autoscaler must ignore other nodes.
func (p *Provider) groupForNode(in *groupForNodeRequest) (*groupForNode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.Node == nil || p.states[machineOf(in.Node)] == nil {
		return &groupForNode{NodeGroup: &nodeGroup{}}, nil
	}
	return &groupForNode{NodeGroup: p.describe()}, nil
}

// machineOf returns the name of a node's machine. The autoscaler knows a machine that never
// registered by its ID only.
func machineOf(n *externalNode) string { return strings.TrimPrefix(n.ProviderID, scheme) }

func (p *Provider) refresh(*empty) (*empty, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history.Loops++
	return &empty{}, nil
}

func (p *Provider) targetSize(*groupID) (*targetSize, error) {
	return &targetSize{TargetSize: int32(len(p.Machines()))}, nil
}

// increase starts to create machines, in parallel.
func (p *Provider) increase(in *sizeRequest) (*empty, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := len(p.wanted()); in.Delta <= 0 || have+int(in.Delta) > p.group.Max {
		return nil, status.Errorf(codes.InvalidArgument, "%d more than %d machines: the group has %d at most", in.Delta, have, p.group.Max)
	}
	var names []string
	for range in.Delta {
		p.made++
		name := fmt.Sprintf("%s-%d", p.group.Name, p.made)
		names = append(names, name)
		p.states[name] = &machineState{state: creating}
		p.working.Go(func() { p.add(name) })
	}
	p.history.Increases = append(p.history.Increases, Request{At: time.Now(), Machines: names})
	p.log.Info("the autoscaler adds machines", "machines", names)
	return &empty{}, nil
}

func (p *Provider) add(name string) {
	err := p.machines.Add(p.ctx, name)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.states[name]
	if m.err = err; err != nil {
		p.log.Error("a machine could not be made", "machine", name, "error", err)
		return
	}
	if m.state == creating {
		m.state = running
	}
	p.log.Info("a machine is a Ready node", "machine", name)
}

// delete starts to remove machines.
func (p *Provider) delete(in *deleteRequest) (*empty, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, n := range in.Nodes {
		name := machineOf(n)
		m := p.states[name]
		switch {
		case m == nil:
			return nil, status.Errorf(codes.NotFound, "%s is not a machine of the group", name)
		case m.state == creating && m.err == nil:
			return nil, status.Errorf(codes.FailedPrecondition, "%s is still being made", name)
		case m.state == deleting:
			continue
		}
		names = append(names, name)
	}
	for _, name := range names {
		there := p.states[name].err == nil
		p.states[name].state = deleting
		p.working.Go(func() { p.remove(name, there) })
	}
	p.history.Deletes = append(p.history.Deletes, Request{At: time.Now(), Machines: names})
	p.log.Info("the autoscaler removes machines", "machines", names)
	return &empty{}, nil
}

func (p *Provider) remove(name string, there bool) {
	if there {
		if err := p.machines.Remove(p.ctx, name); err != nil {
			p.log.Error("a machine could not be removed", "machine", name, "error", err)
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.states, name)
}

// decrease always fails: a requested machine is created at once, so there is no open request to
// cancel.
func (p *Provider) decrease(in *sizeRequest) (*empty, error) {
	return nil, status.Errorf(codes.FailedPrecondition, "%d machines fewer: all that were asked for are being made", -in.Delta)
}

func (p *Provider) nodes(*groupID) (*instances, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const otherError = 99 // the protocol's class of errors that are no lack of room
	all := &instances{}
	for name, m := range p.states {
		s := &instanceStatus{State: m.state}
		if m.err != nil {
			s.Error = &instanceError{Code: "NotMade", Message: m.err.Error(), Class: otherError}
		}
		all.Instances = append(all.Instances, &instance{ID: ProviderID(name), Status: s})
	}
	return all, nil
}

func (p *Provider) template(*groupID) (*template, error) {
	node, err := p.group.Template.Marshal()
	return &template{Node: node}, err
}
