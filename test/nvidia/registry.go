package nvidia

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Registry has the images of both stacks, for the nodes of one cluster.
type Registry struct {
	Host string // "10.88.0.1:5000"

	images  []string // full names
	server  *http.Server
	served  chan struct{}
	handler http.Handler
	dir     string
}

// Pad says how large, in bytes as they are pulled, one of NVIDIA's images is made at least,
// by its name without repository and tag. What is added is random bytes, in a layer of its own.
type Pad map[string]int64

// Sizes are about those of NVIDIA's images on x86-64, compressed. They are estimates from
// their base images (CUDA base on UBI 8: 90 MB) and programs: the registry that has them
// could not be asked. The driver's is the same for both stacks.
func Sizes() Pad {
	return Pad{
		"gpu-operator": 190e6, "gpu-operator-validator": 160e6, "container-toolkit": 130e6,
		"k8s-device-plugin": 180e6, "k8s-driver-manager": 130e6, "driver": 1500e6,
	}
}

// Scale returns sizes that are all smaller or larger, where disk or time do not do for real
// ones.
func (p Pad) Scale(by float64) Pad {
	scaled := Pad{}
	for name, size := range p {
		scaled[name] = int64(float64(size) * by)
	}
	return scaled
}

// Serve starts a registry in the control plane's network, behind a link, with the images
// of both stacks, and has the nodes' runtimes pull from it. It speaks plain HTTP. The
// caller closes it.
func (b *Built) Serve(ctx context.Context, c *cluster.Cluster, link Link, pad Pad) (*Registry, error) {
	const port = 5000
	dir := filepath.Join(b.bin, "nvidia-registry-"+c.Name)
	if err := os.RemoveAll(dir); err != nil { // of a run that was killed
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := newRegistry(fmt.Sprintf("%s:%d", cluster.PlaneIP, port), dir)
	if err := r.fill(ctx, b.Stacks, pad); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l, err := c.Listen(ctx, port)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r.server = &http.Server{Handler: r.handler} //nolint:gosec // nobody but the cluster reaches it
	go func() { defer close(r.served); _ = r.server.Serve(listener{l, &line{Link: link}}) }()
	for _, n := range c.Nodes {
		hosts := n.PathOnNode("/etc/containerd/certs.d/" + r.Host + "/hosts.toml")
		if err := os.MkdirAll(filepath.Dir(hosts), 0o755); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		text := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.Host)
		if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

func newRegistry(host, dir string) *Registry {
	handler := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)), registry.WithBlobHandler(newBlobs(dir)))
	return &Registry{Host: host, dir: dir, served: make(chan struct{}), handler: handler}
}

// Close ends the registry and removes what it had.
func (r *Registry) Close() error {
	err := r.server.Close()
	<-r.served
	return errors.Join(err, os.RemoveAll(r.dir))
}

// fill puts images into the registry.
func (r *Registry) fill(ctx context.Context, archives []string, pad Pad) error {
	for _, archive := range archives {
		full, image, err := load(archive, r.dir)
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		size, err := pulled(image)
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		component, _, _ := strings.Cut(strings.TrimPrefix(full, repository+"/"), ":") // ours keep their folder
		if missing := pad[component] - size; missing > 0 {
			layer, err := newPadding(r.dir, path.Base(full), missing)
			if err != nil {
				return err
			}
			if image, err = mutate.AppendLayers(image, layer); err != nil {
				return err
			}
		}
		_, rest, _ := strings.Cut(full, "/") // the registry stands for docker.io and gpuready.test
		ref, err := name.ParseReference(r.Host+"/"+rest, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, image, remote.WithTransport(r), remote.WithContext(ctx), remote.WithJobs(1)); err != nil {
			return fmt.Errorf("put %s into the registry: %w", full, err)
		}
		r.images = append(r.images, ref.Name())
	}
	return nil
}

// Warm pulls all images to a node, as on one that had the stack before. The link delays it.
func (r *Registry) Warm(ctx context.Context, n *cluster.Node) error {
	for _, image := range r.images {
		if _, err := n.Exec(ctx, "ctr", "--namespace", "k8s.io", "images", "pull", "--plain-http", image); err != nil {
			return fmt.Errorf("pull %s: %w", image, err)
		}
	}
	return nil
}

// pulled returns the number of bytes of layers that were pulled of an image.
func pulled(image v1.Image) (size int64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}

// forget removes from a node what was pulled from the registry, and what dead containers
// keep of it; there may be no registry.
func (r *Registry) forget(ctx context.Context, n *cluster.Node) error {
	if r == nil {
		return nil
	}
	containers, err := list(ctx, n, "containers")
	if err != nil {
		return err
	}
	var dead []string
	for _, c := range containers { // ID, image, runtime
		if strings.HasPrefix(c[1], r.Host+"/") {
			dead = append(dead, c[0])
		}
	}
	images, err := list(ctx, n, "images")
	if err != nil {
		return err
	}
	digests := map[string]bool{}
	for _, i := range images { // name, type, digest
		if strings.HasPrefix(i[0], r.Host+"/") {
			digests[i[2]] = true
		}
	}
	var names []string
	for _, i := range images {
		if digests[i[2]] { // the kubelet's other names, such as sha256:…, too
			names = append(names, i[0])
		}
	}
	return errors.Join(remove(ctx, n, []string{"containers", "rm"}, dead), remove(ctx, n, []string{"images", "rm", "--sync"}, names))
}

// list lists what a node's containerd has of the kubelet's, with at least three columns.
func list(ctx context.Context, n *cluster.Node, what string) (rows [][]string, err error) {
	out, err := n.Exec(ctx, "ctr", "--namespace", "k8s.io", what, "ls")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		if columns := strings.Fields(line); len(columns) >= 3 {
			rows = append(rows, columns)
		}
	}
	return rows, nil
}

func remove(ctx context.Context, n *cluster.Node, command, names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := n.Exec(ctx, "ctr", slices.Concat([]string{"--namespace", "k8s.io"}, command, names)...)
	return err
}

// RoundTrip lets this process, which is in another network, speak to the registry, and
// past the link.
func (r *Registry) RoundTrip(request *http.Request) (*http.Response, error) {
	request.RequestURI = request.URL.RequestURI()
	if request.Body == nil {
		request.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, request)
	response := w.Result()
	response.Request = request
	return response, nil
}
