package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// GracePeriod is the time for which the capacity of a resource outlives its plugin
// (endpointStopGracePeriod of the kubelet's device manager).
const GracePeriod = 5 * time.Minute

// SocketName is the name of the kubelet's socket in Config.Dir.
const SocketName = "kubelet.sock"

// Config configures a Kubelet. Only Dir must be set.
type Config struct {
	// Dir takes the place of /var/lib/kubelet/device-plugins. It is created if
	// needed. The path of a unix socket has at most 107 bytes.
	Dir string
	// PodResourcesDir takes the place of /var/lib/kubelet/pod-resources; ""
	// leaves the PodResources API out.
	PodResourcesDir string
	// Log, when set, is called for each change, like testing.T.Logf. It may be
	// called until Stop has returned, from several goroutines.
	Log func(format string, args ...any)
	// Now is the clock of the grace period; nil: time.Now.
	Now func() time.Time
	// DialTimeout bounds the call back during Register; 0: 10 s, as in the kubelet.
	DialTimeout time.Duration
	// AlignNUMA chooses devices as under the topology manager's best-effort
	// policy: from as few NUMA nodes as possible. Without it the plugin chooses, as
	// under the default policy "none".
	AlignNUMA bool
	// BeforeListen, when set, is called at each start after kubelet.sock has
	// been made and before it accepts connections.
	BeforeListen func()
	// KeepReplaced leaves the old connection open when a plugin registers its resource
	// again, as kubelets from 1.26 on do. When the old connection ends, the devices of the
	// resource become unhealthy, although the new connection works.
	KeepReplaced bool
}

// Kubelet imitates, for tests, the part of a kubelet that device plugins talk to. Its methods
// may be called concurrently, except Restart beside Stop or another Restart.
type Kubelet struct {
	cfg Config

	mu          sync.Mutex
	changed     chan struct{} // closed and made anew at each change of what follows
	resources   map[string]*resource
	pods        map[string]Pod // by UID: what an API server would still know after a restart
	allocations []*allocation
	run         *run // nil while stopped
}

// run holds the state of one run of the kubelet, from start to stop.
type run struct {
	ctx     context.Context // ends with the run
	end     context.CancelFunc
	servers []*grpc.Server
	wait    sync.WaitGroup // every goroutine of this run
}

// Start starts a kubelet in cfg.Dir: it removes sockets there and reads the checkpoint of an
// earlier run, if there is one, for the devices that pods hold.
func Start(cfg Config) (*Kubelet, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("kubelettest: bad socketPath, must be an absolute path: %q", cfg.Dir)
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	k := &Kubelet{cfg: cfg, changed: make(chan struct{}), pods: map[string]Pod{}}
	if err := k.start(); err != nil {
		return nil, err
	}
	return k, nil
}

// Socket returns the path of kubelet.sock.
func (k *Kubelet) Socket() string { return filepath.Join(k.cfg.Dir, SocketName) }

// Stop ends the kubelet as a SIGKILL would: connections are cut, the sockets
// stay as dead files. It returns once all goroutines have ended. Calling it twice is
// fine.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	r := k.run
	k.run = nil
	if r != nil {
		for _, res := range k.resources {
			res.stop(k.cfg.Now())
		}
		k.notify()
	}
	k.mu.Unlock()
	if r == nil {
		return
	}
	r.end()
	for _, s := range r.servers {
		s.Stop()
	}
	r.wait.Wait()
}

// Restart stops the kubelet, if it runs, and starts it again in the same Dir.
// Its pods keep their devices in the checkpoint.
func (k *Kubelet) Restart() error {
	k.Stop()
	return k.start()
}

func (k *Kubelet) start() error {
	if err := k.prepare(); err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	r := &run{ctx: ctx, end: end}
	registration := grpc.NewServer(grpc.WaitForHandlers(true))
	v1beta1.RegisterRegistrationServer(registration, &registrar{kubelet: k, run: r})
	r.servers = append(r.servers, registration)

	ln, err := listen(k.Socket(), k.cfg.BeforeListen)
	if err != nil {
		end()
		return err
	}
	listeners := []net.Listener{ln}
	if k.cfg.PodResourcesDir != "" {
		pods := grpc.NewServer(grpc.WaitForHandlers(true))
		podresources.RegisterPodResourcesListerServer(pods, &podLister{kubelet: k})
		r.servers = append(r.servers, pods)
		ln, err := listen(filepath.Join(k.cfg.PodResourcesDir, SocketName), nil)
		if err != nil {
			end()
			_ = listeners[0].Close()
			return err
		}
		listeners = append(listeners, ln)
	}
	k.mu.Lock()
	k.run = r
	k.mu.Unlock()
	for i, s := range r.servers {
		r.wait.Go(func() {
			if err := s.Serve(listeners[i]); err != nil {
				k.cfg.Log("kubelet: %s: %v", listeners[i].Addr(), err)
			}
		})
	}
	k.cfg.Log("kubelet: serving device plugin registration on %s", k.Socket())
	return nil
}

// prepare makes the folders, reads the checkpoint and removes old sockets, in
// the order in which the kubelet does.
func (k *Kubelet) prepare() error {
	for _, dir := range []string{k.cfg.Dir, k.cfg.PodResourcesDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("kubelettest: %w", err)
		}
	}
	if err := k.restore(); err != nil {
		// As the kubelet: "Device allocation info may NOT be up-to-date".
		k.cfg.Log("kubelet: continue after failing to read the checkpoint: %v", err)
	}
	for _, dir := range []string{k.cfg.Dir, k.cfg.PodResourcesDir} {
		if dir == "" {
			continue
		}
		if err := removeSockets(dir); err != nil {
			return err
		}
	}
	return nil
}

func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("kubelettest: %w", err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("kubelettest: %w", err)
		}
	}
	return nil
}

// listen makes a unix socket and calls between after bind(2) and before listen(2): the socket
// of a real kubelet, too, exists for a moment before it accepts connections. The file outlives
// the listener: a killed kubelet removes nothing.
func listen(path string, between func()) (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("kubelettest: listen on %s (%d bytes, a unix socket has at most 107): %w", path, len(path), err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }() // net.FileListener has its own copy
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return fail(err)
	}
	if between != nil {
		between()
	}
	if err := syscall.Listen(fd, syscall.SOMAXCONN); err != nil {
		return fail(err)
	}
	ln, err := net.FileListener(file)
	if err != nil {
		return fail(err)
	}
	return ln, nil
}

// notify wakes all goroutines that wait for a change. The caller holds k.mu.
func (k *Kubelet) notify() {
	close(k.changed)
	k.changed = make(chan struct{})
}
