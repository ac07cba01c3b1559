package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/test/lab/folder"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// hostname is the host name of the control plane.
const hostname = "control-plane"

// controlPlane is one cluster's control plane. Nodes may be created before it is started, and boot while
// it starts.
type controlPlane struct {
	Authority    *folder.Authority // of all certificates in the cluster
	planeOptions                   // set before Start

	// Set when Start has returned; the client already when Serving has.
	Server     string         // URL of the API server, valid on this machine outside the namespaces
	Kubeconfig string         // an administrator's file, valid in the same place
	API        *folder.Client // the same administrator's

	folder  *folder.Folder
	machine *namespace.Machine // nil: never started
	bridged chan struct{}      // closed when nodes can be attached
	serving chan struct{}      // closed when the API server is ready
}

// planeOptions configure the control plane's programs.
type planeOptions struct {
	Controllers string   // of the controller manager; "": all
	Admission   []string // additional admission plugins of the API server
	Audit       string   // group whose requests the API server logs; "": none
}

// newPlane creates the control plane of the cluster in that folder.
func newPlane(f *folder.Folder) (*controlPlane, error) {
	authority, err := folder.NewAuthority("gpuready-" + f.Cluster)
	if err != nil {
		return nil, err
	}
	return &controlPlane{Authority: authority, folder: f, bridged: make(chan struct{}), serving: make(chan struct{})}, nil
}

// Start starts the control plane and returns when pods can be created. path returns the path of a
// program, and done is called after each step. After a failure End must be called to end what
// runs.
func (p *controlPlane) Start(ctx context.Context, path func(program string) string, done func(what string)) error {
	// A listener keeps its network namespace, here the one outside; the control plane accepts on it.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("a port for the API server: %w", err)
	}
	defer listener.Close()
	if err := p.writeAdmin("https://" + listener.Addr().String()); err != nil {
		return err
	}
	if err := p.writeKeys(); err != nil {
		return err
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer file.Close()
	spec := namespace.Spec{Hostname: hostname, Target: PlaneIP + ":443", Programs: planePrograms(p.folder, p.planeOptions, path)}
	if p.machine, err = namespace.StartMachine(p.folder.MachineFiles(hostname), spec, file); err != nil {
		return err
	}
	if err := makeBridge(p.machine.PID()); err != nil {
		return err
	}
	close(p.bridged)
	if err := p.machine.WaitBooted(ctx); err != nil {
		return err
	}
	if err := p.machine.Start(ctx, etcd, true); err != nil {
		return err
	}
	done(etcd)
	if err := p.machine.Start(ctx, apiserver, false); err != nil {
		return err
	}
	if err := p.poll(ctx, apiserver, "/readyz"); err != nil {
		return err
	}
	close(p.serving)
	done(apiserver)
	g, both := errgroup.WithContext(ctx)
	for _, name := range []string{scheduler, controllerManager} {
		g.Go(func() error { return p.machine.Start(both, name, false) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// Pods are refused until the controller manager has created their namespace's account.
	err = p.poll(ctx, controllerManager, "/api/v1/namespaces/default/serviceaccounts/default")
	done("service accounts")
	return err
}

// poll requests a path of the API server until it succeeds. program is the one that makes it
// succeed.
func (p *controlPlane) poll(ctx context.Context, program, path string) error {
	again := time.NewTicker(30 * time.Millisecond)
	defer again.Stop()
	for {
		err := p.API.Check(ctx, path)
		if err == nil {
			return nil
		}
		if err := p.machine.CheckRunning(program); err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return p.machine.WithLog(program, fmt.Errorf("waiting for it: %w (%w)", context.Cause(ctx), err))
		}
	}
}

// Attach connects a node, by its number and its first process, to the bridge as soon as that
// exists.
func (p *controlPlane) Attach(ctx context.Context, number, process int) error {
	if err := awaitClosed(ctx, p.bridged); err != nil {
		return err
	}
	return attach(p.machine.PID(), process, number)
}

// AttachGuest connects a virtual machine as the node of a number, and returns the tap device for
// its network card.
func (p *controlPlane) AttachGuest(number int) (*os.File, error) {
	return attachGuest(p.machine.PID(), number)
}

// Serving waits until the API server is ready.
func (p *controlPlane) Serving(ctx context.Context) error { return awaitClosed(ctx, p.serving) }

func awaitClosed(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RestartAPIServer kills the API server and returns when it serves again.
func (p *controlPlane) RestartAPIServer(ctx context.Context) error {
	if err := p.machine.RestartWithoutNotify(ctx, apiserver, syscall.SIGKILL); err != nil {
		return err
	}
	return p.poll(ctx, apiserver, "/readyz")
}

// Listen returns a listener in the control plane's network. Nodes and pods reach it at
// PlaneIP.
func (p *controlPlane) Listen(ctx context.Context, port int) (net.Listener, error) {
	var l net.Listener
	err := withinNetwork(p.machine.PID(), func() error {
		var err error
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(PlaneIP, strconv.Itoa(port)))
		return err
	})
	return l, err
}

// Ended is closed when the started control plane has ended.
func (p *controlPlane) Ended() <-chan struct{} { return p.machine.Ended() }

// End ends the control plane; it may never have been started.
func (p *controlPlane) End() {
	if p.machine != nil {
		p.machine.End()
	}
}
