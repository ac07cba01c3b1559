package recipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/precompiled/runfile"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// refName is the annotation with an image's name in an OCI layout.
const refName = "org.opencontainers.image.ref.name"

// Image is a built or pushed image.
type Image struct {
	Name   string `json:"image"`
	Digest string `json:"digest"`
	Kernel string `json:"kernel,omitempty"`
	// LayerSize is the compressed size of the kernel's own layer, in bytes.
	LayerSize int64 `json:"layerSize,omitempty"`
}

// Build builds the images of all kernels and replaces s.Folder by them.
func (s *Settings) Build(ctx context.Context) (made []Image, err error) {
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return nil, err
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	work := filepath.Join(s.Out, "work") // leftovers of a killed run are removed
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o755)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	base, err := s.readBase(ctx)
	if err != nil {
		return nil, fmt.Errorf("BASE_IMAGE: %w", err)
	}
	kernels, err := s.findKernels(ctx, work)
	if err != nil {
		return nil, err
	}
	d, err := s.findDriver(ctx, kernels, work)
	if err != nil {
		return nil, err
	}
	var all []compiled
	for n, release := range kernels {
		for _, from := range d.sources {
			c, err := s.compileHalves(ctx, from, release, n, work)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	fabric, err := s.findFabric(ctx, work)
	if err != nil {
		return nil, err
	}
	common, err := s.addCommon(ctx, base, d, all, fabric, work)
	if err != nil {
		return nil, err
	}
	if err := s.verifyAndSign(all); err != nil {
		return nil, err
	}
	return s.writeImages(common, kernels, all)
}

// lock locks s.Out against other runs, until unlock is called or this process ends.
func (s *Settings) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.Out, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run builds images in %s: wait for it, or set another OUTPUT_DIR: %w", s.Out, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Folder returns the OCI layout with the images.
func (s *Settings) Folder() string { return filepath.Join(s.Out, s.DriverVersion+"-"+s.OSTag) }

// readBase returns the image of gpuready/driver: an archive, or one in a registry.
func (s *Settings) readBase(ctx context.Context) (v1.Image, error) {
	base, err := s.openBase(ctx)
	if err != nil {
		return nil, err
	}
	config, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	if arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[config.Architecture]; arch != s.TargetArch {
		return nil, fmt.Errorf("%s is of %s, and TARGET_ARCH is %s", s.BaseImage, config.Architecture, s.TargetArch)
	}
	if config.Config.Labels[image.DriverLabel] == "" {
		return nil, fmt.Errorf("%s has no label %s: it is not built from gpuready/driver", s.BaseImage, image.DriverLabel)
	}
	return convertToOCI(base, config)
}

// convertToOCI returns an image in OCI format, as tools expect in an OCI layout.
func convertToOCI(base v1.Image, config *v1.ConfigFile) (v1.Image, error) {
	layers, err := base.Layers()
	if err != nil {
		return nil, err
	}
	i := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		if i, err = mutate.Append(i, mutate.Addendum{Layer: l, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	own, err := i.ConfigFile()
	if err != nil {
		return nil, err
	}
	own = own.DeepCopy()
	own.Config, own.OS, own.Architecture, own.Created, own.History = config.Config, config.OS, config.Architecture, config.Created, config.History
	return mutate.ConfigFile(i, own)
}

func (s *Settings) openBase(ctx context.Context) (v1.Image, error) {
	if fileExists(s.BaseImage) {
		return tarball.ImageFromPath(s.BaseImage, nil)
	}
	return s.Registry.Read(ctx, s.BaseImage)
}

// addCommon returns the base with the layers that all kernels share. fabric is the folder of findFabric.
func (s *Settings) addCommon(ctx context.Context, base v1.Image, d driver, all []compiled, fabric, work string) (v1.Image, error) {
	root := filepath.Join(work, "driver")
	if err := d.install(s.layout(), root); err != nil {
		return nil, err
	}
	files := mutate.Extract(base)
	baseRoot := filepath.Join(work, "base")
	if err := errors.Join(runfile.UntarStream(ctx, files, baseRoot, runfile.AnyLinks), files.Close()); err != nil {
		return nil, fmt.Errorf("BASE_IMAGE: %w", err)
	}
	if err := s.copyGlibc(baseRoot, root); err != nil {
		return nil, err
	}
	for _, c := range all {
		if err := c.copyObjects(filepath.Join(root, "usr/src/nvidia-"+s.DriverVersion, sourceNames[c.kind])); err != nil {
			return nil, err
		}
	}
	layers := []struct{ dir, at string }{{all[len(all)-1].tools, strings.TrimPrefix(link.ToolsDir, "/")}, {root, "driver"}}
	if fabric != "" {
		to := filepath.Join(work, "fabric-driver")
		if err := s.layout().Copy(fabric, to); err != nil {
			return nil, fmt.Errorf("FABRIC: %w", err)
		}
		layers = append(layers, struct{ dir, at string }{to, "driver"})
	}
	for _, l := range layers {
		layer, err := image.NewLayer(l.dir, l.at)
		if err == nil {
			base, err = mutate.Append(base, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{CreatedBy: "precompiled image", Comment: l.at}})
		}
		if err != nil {
			return nil, err
		}
	}
	config, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	own := config.Config.DeepCopy()
	if s.BuilderUser != "" || s.BuilderEmail != "" {
		own.Labels["org.opencontainers.image.authors"] = strings.TrimSpace(s.BuilderUser + " <" + s.BuilderEmail + ">")
	}
	return mutate.Config(base, *own)
}

// copyObjects copies the objects that all kernels share from the sources. Halves name them by
// path and digest.
func (c compiled) copyObjects(to string) error {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	h, err := link.Read(c.halvesDir())
	if err != nil {
		return err
	}
	for _, m := range h.Modules {
		for _, o := range m.Objects {
			if o.Common == "" || fileExists(filepath.Join(to, o.Common)) {
				continue
			}
			if err := copyObject(root, o, filepath.Join(to, o.Common)); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyObject(sources *os.Root, o link.Object, at string) error {
	info, err := sources.Lstat(o.Common)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file of the driver's sources", record.Clean(o.Common, 200))
	}
	if err != nil {
		return err
	}
	in, err := sources.Open(o.Common)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	sum, err := folder.CopySum(out, in)
	if err = errors.Join(err, out.Close()); err == nil && sum != o.SHA256 {
		err = fmt.Errorf("%s is not the object from which the modules were linked", record.Clean(o.Common, 200))
	}
	return err
}

// verifyAndSign verifies the built modules. If there is a key it signs them, and adds the
// signatures to their halves. It runs no program that a container has produced.
func (s *Settings) verifyAndSign(all []compiled) error {
	for _, c := range all {
		halves := c.halvesDir()
		h, err := link.Read(halves)
		if err != nil {
			return err
		}
		if err := kernel.CheckBuilt(c.linked, h.Names(), c.release, s.DriverVersion); err != nil {
			return fmt.Errorf("kernel %s: %w", c.release, err)
		}
		if s.SignKey == "" {
			continue
		}
		key, err := sign.LoadKey(s.SignKey, s.SignCertificate)
		if err == nil {
			err = build.StoreSignatures(halves, c.linked, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeImages writes the image of each kernel, with a layer for each kind of modules.
func (s *Settings) writeImages(common v1.Image, kernels []string, all []compiled) ([]Image, error) {
	next := s.Folder() + ".new"
	if err := os.RemoveAll(next); err != nil {
		return nil, err
	}
	out, err := layout.Write(next, empty.Index)
	if err != nil {
		return nil, err
	}
	var made []Image
	for _, release := range kernels {
		i := common
		tag, err := s.tag(release)
		if err != nil {
			return nil, err
		}
		one := Image{Name: s.repository() + ":" + tag, Kernel: release}
		for _, c := range all {
			if c.release != release {
				continue
			}
			var size int64
			if i, size, err = s.addModules(i, c); err != nil {
				return nil, err
			}
			one.LayerSize += size
		}
		if err := out.AppendImage(i, layout.WithAnnotations(map[string]string{refName: tag})); err != nil {
			return nil, err
		}
		digest, err := i.Digest()
		if err != nil {
			return nil, err
		}
		one.Digest = digest.String()
		made = append(made, one)
	}
	return made, errors.Join(os.RemoveAll(s.Folder()), os.Rename(next, s.Folder()))
}

// addModules adds a layer with the halves of one kind of modules to an image, and returns its size.
func (s *Settings) addModules(i v1.Image, c compiled) (v1.Image, int64, error) {
	h, err := link.Read(c.halvesDir())
	if err != nil {
		return nil, 0, err
	}
	layer, err := image.NewLayer(c.halves, image.ModulesDir(c.release))
	if err != nil {
		return nil, 0, err
	}
	m := image.Modules{Kernel: c.release, Kind: string(c.kind), Version: s.DriverVersion, Names: h.Names()}
	if i, err = image.AddLayer(i, layer, m); err != nil {
		return nil, 0, err
	}
	size, err := layer.Size()
	return i, size, err
}

// Push pushes the images that Build has built.
func (s *Settings) Push(ctx context.Context) ([]Image, error) {
	index, err := layout.ImageIndexFromPath(s.Folder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: make image creates it", s.Folder())
	}
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var pushed []Image
	for _, m := range manifest.Manifests {
		i, err := index.Image(m.Digest)
		if err != nil {
			return nil, err
		}
		name := s.repository() + ":" + m.Annotations[refName]
		s.Log.Info("pushing", "image", name)
		if err := s.Registry.Write(ctx, name, i); err != nil {
			return nil, err
		}
		pushed = append(pushed, Image{Name: name, Digest: m.Digest.String()})
	}
	return pushed, nil
}
