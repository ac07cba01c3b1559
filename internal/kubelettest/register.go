package kubelettest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registrar serves the Registration service.
type registrar struct {
	v1beta1.UnimplementedRegistrationServer
	kubelet *Kubelet
	run     *run
}

// endpoint is the connection to a plugin that has registered.
type endpoint struct {
	name   string // of its socket
	conn   *grpc.ClientConn
	client v1beta1.DevicePluginClient
}

// Register returns after the plugin has answered: like the kubelet, it first dials the
// plugin.
func (s *registrar) Register(ctx context.Context, req *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k := s.kubelet
	k.cfg.Log("kubelet: got registration request for %s from %s", req.GetResourceName(), req.GetEndpoint())
	if req.GetVersion() != v1beta1.Version {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", req.GetVersion(), v1beta1.SupportedVersions)
	}
	if !isExtendedResource(req.GetResourceName()) {
		return nil, fmt.Errorf("the ResourceName %q is invalid", req.GetResourceName())
	}
	path := filepath.Join(k.cfg.Dir, req.GetEndpoint())
	if req.GetEndpoint() == "" || filepath.Dir(path) != filepath.Clean(k.cfg.Dir) {
		return nil, fmt.Errorf("endpoint %q is not the name of a socket in %s", req.GetEndpoint(), k.cfg.Dir)
	}
	e, options, err := dial(ctx, path, k.cfg.DialTimeout)
	if err != nil {
		return nil, err
	}
	k.connect(s.run, req.GetResourceName(), e, options)
	return &v1beta1.Empty{}, nil
}

func dial(ctx context.Context, path string, timeout time.Duration) (*endpoint, *v1beta1.DevicePluginOptions, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	e := &endpoint{name: filepath.Base(path), conn: conn, client: v1beta1.NewDevicePluginClient(conn)}
	options, err := e.client.GetDevicePluginOptions(ctx, &v1beta1.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return e, options, nil
}

// connect replaces an earlier endpoint with this one and follows it.
func (k *Kubelet) connect(r *run, name string, e *endpoint, options *v1beta1.DevicePluginOptions) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.run != r { // stopped meanwhile
		_ = e.conn.Close()
		return
	}
	res := k.resources[name]
	if res == nil {
		res = &resource{name: name, healthy: map[string]bool{}, unhealthy: map[string]bool{}}
		k.resources[name] = res
	}
	if old := res.endpoint; old != nil && !k.cfg.KeepReplaced {
		_ = old.conn.Close()
	}
	res.endpoint, res.options, res.stopped = e, options, time.Time{}
	res.lists = 0
	res.registered++
	r.wait.Go(func() { k.follow(r, res, e) })
	k.notify()
}

// follow applies the plugin's lists until the stream ends.
func (k *Kubelet) follow(r *run, res *resource, e *endpoint) {
	err := k.receive(r, res, e)
	_ = e.conn.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.run != r {
		return // the kubelet itself has ended
	}
	k.cfg.Log("kubelet: ListAndWatch of %s ended: %v", res.name, err)
	if res.endpoint != e && !k.cfg.KeepReplaced {
		return
	}
	res.stop(k.cfg.Now())
	k.notify()
}

func (k *Kubelet) receive(r *run, res *resource, e *endpoint) error {
	stream, err := e.client.ListAndWatch(r.ctx, &v1beta1.Empty{})
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		k.mu.Lock()
		if k.run == r && (res.endpoint == e || k.cfg.KeepReplaced) {
			res.setDevices(resp.GetDevices())
			k.cfg.Log("kubelet: %s has %d devices, %d healthy", res.name, len(res.devices), len(res.healthy))
			k.save()
			k.notify()
		}
		k.mu.Unlock()
	}
}

var (
	dnsSubdomain  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualifiedPart = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
)

// isExtendedResource is a copy of IsExtendedResourceName of the Kubernetes core API. It
// accepts a qualified name whose domain is not kubernetes.io's own, unless it is the
// name of a quota.
func isExtendedResource(name string) bool {
	domain, part, ok := strings.Cut(name, "/")
	if !ok || strings.HasSuffix(domain, "kubernetes.io") || strings.HasPrefix(name, "requests.") {
		return false
	}
	return len("requests."+domain) <= 253 && dnsSubdomain.MatchString(domain) &&
		len(part) <= 63 && qualifiedPart.MatchString(part)
}
