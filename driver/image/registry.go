package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/klauspost/compress/zstd"

	"github.com/gpuready/gpuready/internal/registry"
	"github.com/gpuready/gpuready/internal/version"
)

// Registry reads and writes images in registries. It uses the proxy and the certificate
// authorities of the environment (HTTPS_PROXY, SSL_CERT_DIR).
type Registry struct {
	Insecure []string       // registries, "host:port", for which plain HTTP is allowed
	Keychain authn.Keychain // nil: config.json in DOCKER_CONFIG
}

// ErrAbsent is returned, wrapped, if a registry has no such image, or the image no such
// modules.
var ErrAbsent = fs.ErrNotExist

// ErrUnreachable is returned, wrapped, if a registry does not respond or refuses the request.
var ErrUnreachable = errors.New("the registry cannot be read")

// errArchitecture is returned, wrapped, for an image of another architecture.
var errArchitecture = errors.New("it is of another architecture")

// Pull unpacks the layer that want describes to the new folder to. It compares want.Names,
// want.Sources and want.Signer if the image's labels have them, and ignores want.Layer. The
// error wraps ErrAbsent if the registry has no such layer for this machine's architecture.
func (r Registry) Pull(ctx context.Context, image string, want Modules, to string) error {
	i, m, err := r.findModules(ctx, image, want)
	if err != nil {
		return err
	}
	if err := unpackLayer(i, m, to); err != nil {
		return errors.Join(fmt.Errorf("%s: its modules for kernel %s: %w", image, want.Kernel, markUnreachable(err)), os.RemoveAll(to))
	}
	return nil
}

// HasModules reports whether Pull would find the modules. If want.Signer is set, the image
// has to name the same signer.
func (r Registry) HasModules(ctx context.Context, image string, want Modules) (bool, error) {
	_, m, err := r.findModules(ctx, image, want)
	if errors.Is(err, ErrAbsent) {
		return false, nil
	}
	return err == nil && (want.Signer == "" || m.Signer == want.Signer), err
}

// markUnreachable marks errors of the network and of registries with ErrUnreachable.
func markUnreachable(err error) error {
	_, answered := errors.AsType[*transport.Error](err)
	_, network := errors.AsType[net.Error](err)
	if answered || network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// IsDenied reports whether a registry has rejected the credentials.
func IsDenied(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && (e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden)
}

func (r Registry) findModules(ctx context.Context, image string, want Modules) (v1.Image, Modules, error) {
	i, err := r.Read(ctx, image)
	if errors.Is(err, errArchitecture) {
		err = fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if err != nil {
		return nil, Modules{}, err
	}
	list, err := ListModules(i)
	if err != nil {
		return nil, Modules{}, fmt.Errorf("%s: %w", image, err)
	}
	at := slices.IndexFunc(list, func(m Modules) bool { return m.matches(want) })
	if at < 0 {
		return nil, Modules{}, fmt.Errorf("%s: %w: it has no such %s modules of driver %s for kernel %s", image, ErrAbsent, want.Kind, want.Version, want.Kernel)
	}
	return i, list[at], nil
}

func unpackLayer(i v1.Image, m Modules, to string) error {
	id, err := v1.NewHash(m.Layer)
	if err != nil {
		return err
	}
	layer, err := i.LayerByDiffID(id)
	if err != nil {
		return err
	}
	content, err := uncompress(layer)
	if err != nil {
		return err
	}
	return errors.Join(unpackFiles(content, ModulesDir(m.Kernel), to, layerBounds), content.Close())
}

// maxWindow bounds the memory that a layer compressed by zstd asks for. Nobody who makes images uses more than 8 MiB.
const maxWindow = 16 << 20

// uncompress returns the content of a layer. The library's own way allows a window of 512 MiB.
func uncompress(layer v1.Layer) (io.ReadCloser, error) {
	compressed, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(compressed)
	magic, _ := buffered.Peek(4) // shorter: neither
	var content io.Reader = buffered
	release := func() {}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		content, err = gzip.NewReader(buffered)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1)); err == nil {
			content, release = z, z.Close
		}
	}
	if err != nil {
		return nil, errors.Join(err, compressed.Close())
	}
	return uncompressed{content, func() error { release(); return compressed.Close() }}, nil
}

type uncompressed struct {
	io.Reader
	close func() error
}

func (u uncompressed) Close() error { return u.close() }

// Push appends a layer of modules to the image base, writes the result as image, and returns
// its reference by digest. If image exists, the layer is added to it, and its modules for other
// kernels and kinds stay. If it has other modules for the same kernel and kind, it is replaced
// as a whole.
func (r Registry) Push(ctx context.Context, base, image string, layer v1.Layer, m Modules) (string, error) {
	ref, err := r.parseReference(image)
	if err != nil {
		return "", err
	}
	whole, err := r.extendImage(ctx, base, image, layer, m)
	if err != nil {
		return "", err
	}
	digest, err := whole.Digest()
	if err != nil {
		return "", err
	}
	if err := r.Write(ctx, image, whole); err != nil {
		return "", err
	}
	return ref.Context().Digest(digest.String()).String(), nil
}

// Write pushes an image. It skips layers that the registry has.
func (r Registry) Write(ctx context.Context, image string, i v1.Image) error {
	ref, err := r.parseReference(image)
	if err != nil {
		return err
	}
	if err := remote.Write(ref, i, r.remoteOptions(ctx)...); err != nil {
		return fmt.Errorf("push %s: %w", image, markUnreachable(err))
	}
	return nil
}

// extendImage returns the image that Push writes.
func (r Registry) extendImage(ctx context.Context, base, image string, layer v1.Layer, m Modules) (v1.Image, error) {
	there, index, err := r.readImage(ctx, image)
	if errors.Is(err, errArchitecture) || index {
		return nil, fmt.Errorf("%s is for another architecture or for several, and the pushed modules are for one: push to another repository", image)
	}
	if err != nil && !errors.Is(err, ErrAbsent) {
		return nil, err
	}
	if err == nil {
		list, err := ListModules(there)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", image, err)
		}
		same := slices.IndexFunc(list, func(o Modules) bool { return o.Kernel == m.Kernel && o.Kind == m.Kind })
		if same < 0 {
			return AddLayer(there, layer, m)
		}
		if id, err := layer.DiffID(); err != nil || list[same].Layer == id.String() {
			return there, err
		}
	}
	from, err := r.Read(ctx, base)
	if err != nil {
		return nil, err
	}
	return AddLayer(from, layer, m)
}

// Read returns an image for this machine's architecture, also from an index of several.
func (r Registry) Read(ctx context.Context, image string) (v1.Image, error) {
	i, _, err := r.readImage(ctx, image)
	return i, err
}

// readImage is Read. It also reports whether the reference names an index of several images.
func (r Registry) readImage(ctx context.Context, image string) (i v1.Image, index bool, err error) {
	ref, err := r.parseReference(image)
	if err != nil {
		return nil, false, err
	}
	d, err := remote.Get(ref, r.remoteOptions(ctx)...)
	if e, ok := errors.AsType[*transport.Error](err); ok && e.StatusCode == http.StatusNotFound {
		return nil, false, fmt.Errorf("%s: %w: %w", image, ErrAbsent, err)
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", image, markUnreachable(err))
	}
	index = d.MediaType.IsIndex()
	if i, err = d.Image(); err != nil {
		if err = markUnreachable(err); index && !errors.Is(err, ErrUnreachable) {
			err = fmt.Errorf("%w: %w", errArchitecture, err) // the index has none for this one
		}
		return nil, index, fmt.Errorf("%s: %w", image, err)
	}
	if err := checkConfigSize(i); err != nil {
		return nil, index, fmt.Errorf("%s: %w", image, err)
	}
	return i, index, checkArchitecture(image, i)
}

// checkConfigSize rejects an image whose configuration, which is read as a whole, is too large.
func checkConfigSize(i v1.Image) error {
	m, err := i.Manifest()
	if err != nil {
		return markUnreachable(err)
	}
	if m.Config.Size > registry.MaxDocument {
		return fmt.Errorf("its configuration has %d bytes: %w", m.Config.Size, registry.ErrTooLarge)
	}
	return nil
}

// checkArchitecture rejects an image of another architecture.
func checkArchitecture(image string, i v1.Image) error {
	config, err := i.ConfigFile()
	if err != nil {
		return fmt.Errorf("%s: %w", image, markUnreachable(err))
	}
	if a := config.Architecture; a != "" && a != runtime.GOARCH {
		return fmt.Errorf("%s: %w, %s, and this machine's is %s", image, errArchitecture, sanitizeText(a), runtime.GOARCH)
	}
	return nil
}

func (r Registry) parseReference(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, fmt.Errorf("%q is not an image reference: %w", sanitizeText(image), err)
	}
	if !slices.Contains(r.Insecure, ref.Context().RegistryStr()) {
		return ref, nil
	}
	return name.ParseReference(image, name.Insecure)
}

func (r Registry) remoteOptions(ctx context.Context) []remote.Option {
	keys := r.Keychain
	if keys == nil {
		keys = authn.DefaultKeychain
	}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(keys), remote.WithTransport(r.transport()), remote.WithUserAgent("gpu-driver/" + version.String()),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
	}
}

// shared has the connections of all Registries.
var shared = registry.NewTransport(&tls.Config{}, http.ProxyFromEnvironment)

// transport returns the HTTP transport for registries. The library falls back to plain HTTP for
// private addresses without HTTPS; this transport allows that only for r.Insecure.
func (r Registry) transport() http.RoundTripper {
	return registry.LimitDocuments(registry.RoundTripper(func(q *http.Request) (*http.Response, error) {
		if q.URL.Scheme != "https" && !slices.Contains(r.Insecure, q.URL.Host) {
			return nil, fmt.Errorf("%s: plain HTTP is not allowed (PREBUILD_INSECURE)", sanitizeText(q.URL.Host))
		}
		return shared.RoundTrip(q)
	}))
}
