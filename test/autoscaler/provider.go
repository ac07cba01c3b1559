package autoscaler

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

// Machines makes the machines of a group and takes them back, as a cloud does.
type Machines interface {
	// Add makes the machine of that name and returns when its node is Ready. If it fails
	// nothing of the machine is left.
	Add(ctx context.Context, name string) error
	// Remove takes a machine back, and with it its Node object.
	Remove(ctx context.Context, name string) error
}

// Group describes the one node group of a provider.
type Group struct {
	Name     string      // of the group, with which the names of its machines begin
	Max      int         // how many machines it may have; the least is 0
	Template corev1.Node // what the autoscaler is to expect of a new node
	// GPULabel is the label by which the cloud marks nodes that are to have GPUs, "" where
	// it has none.
	GPULabel string
}

// ProviderID is the ID of a group's machine, which its kubelet has to register.
func ProviderID(machine string) string { return scheme + machine }

const scheme = "gpuready-test://"

// Provider answers the Cluster Autoscaler's questions about one node group, by its external
// gRPC interface, and does what it is asked for.
type Provider struct {
	group    Group
	machines Machines
	log      *slog.Logger

	ctx     context.Context // of the machines that are being made or taken back
	cancel  context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	made    int // machines that were ever asked for: the last one's number
	states  map[string]*machineState
	history History
}

// machineState is the state of one machine, by its name.
type machineState struct {
	state int32
	err   error // why it could not be made
}

// States of an instance, as the protocol numbers them.
const (
	running  = 1
	creating = 2
	deleting = 3
)

// History records what an autoscaler has asked of a provider.
type History struct {
	Loops     int // how often it looked at the cluster
	Increases []Request
	Deletes   []Request
}

// Request is one that changed the group.
type Request struct {
	At       time.Time
	Machines []string
}

// NewProvider makes a provider. log may be nil.
func NewProvider(group Group, machines Machines, log *slog.Logger) *Provider {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{group: group, machines: machines, log: log, states: map[string]*machineState{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close ends what is being made and waits for it. Machines that run are left.
func (p *Provider) Close() {
	p.cancel()
	p.working.Wait()
}

// History returns what was asked so far.
func (p *Provider) History() History {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.history
	h.Increases, h.Deletes = slices.Clone(h.Increases), slices.Clone(h.Deletes)
	return h
}

// Machines are the names of the machines that the group has or is making.
func (p *Provider) Machines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted()
}

// wanted are the machines that count for the group's size.
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

// register makes p the CloudProvider service of a server.
func (p *Provider) register(s *grpc.Server) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider",
		HandlerType: (*any)(nil),
		// What is missing is optional: gRPC answers that it is not implemented.
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

// method makes a gRPC method of a function.
func method[In, Out any](name string, answer func(*In) (*Out, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		return answer(in)
	}}
}

func (p *Provider) nodeGroups(*empty) (*nodeGroups, error) {
	return &nodeGroups{NodeGroups: []*nodeGroup{p.describe()}}, nil
}

func (p *Provider) describe() *nodeGroup {
	return &nodeGroup{ID: p.group.Name, MaxSize: int32(p.group.Max), Debug: p.group.Name}
}

// groupForNode knows the machines of the group by their IDs; other nodes are not the
// autoscaler's.
func (p *Provider) groupForNode(in *groupForNodeRequest) (*groupForNode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.Node == nil || p.states[machineOf(in.Node)] == nil {
		return &groupForNode{NodeGroup: &nodeGroup{}}, nil
	}
	return &groupForNode{NodeGroup: p.describe()}, nil
}

// machineOf is the name of a node's machine. The autoscaler knows one that never registered
// by its ID alone.
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

// increase begins to make machines, side by side.
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

// delete begins to take machines back.
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

// decrease has nothing to take back: machines begin to be made as soon as they are asked for.
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
