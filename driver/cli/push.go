package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/serve"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/internal/program"
)

const shareUsage = `Copy this program and the driver's sources from the image to a folder that is shared with
another container of the pod, as DIR/ocp_dtk_entrypoint and DIR/sources. That container can
then build the driver's modules with any image.

Examples:
  gpu-driver share --to /shared
  /shared/ocp_dtk_entrypoint build --source /shared/sources/kernel-open --out /shared/built
  gpu-driver share --to /mnt/shared-nvidia-driver-toolkit --program-only
`

func shareCommand(ctx context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("share", shareUsage, stdout)
	var to string
	var programOnly bool
	o.StringVar(&to, "to", "", "folder that is shared")
	o.BoolVar(&programOnly, "program-only", false, "leave the sources out")
	o.addImageRoot()
	o.addSourceDir()
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	if to == "" {
		return program.UsageErrorf("share needs --to; see gpu-driver share --help")
	}
	from := ""
	if !programOnly {
		var err error
		if from, err = serve.FindSources(o.sources, o.imageRoot); err != nil {
			return err
		}
		if from == "" {
			return fmt.Errorf("%s/usr/src has no nvidia-VERSION: this image has no sources of the driver; use one that has, or name their folder with --sources", o.imageRoot)
		}
	}
	return toolkit.Share(ctx, to, "/proc/self/exe", from)
}

const pushUsage = `Append the modules in a folder to a driver's image, as one layer, and push it as
REPOSITORY:VERSION-KERNEL-OSTAG, where nodes with this kernel look for it. The folder is the
output of gpu-driver build: OUT/lib/modules/KERNEL. No container engine is needed; the
credentials are in config.json in the folder DOCKER_CONFIG.

With --sign-key the modules are signed first. With --sign-certificate alone they have to be
signed by its key already. Halves are signed where they are built (gpu-driver build).

Examples:
  gpu-driver push --modules out/lib/modules/6.1.0-50-amd64 --kernel 6.1.0-50-amd64 \
    --driver-version 580.95.05 --os-tag debian12 \
    --base registry.example.com/gpu/driver:580.95.05-debian12 \
    --repository registry.example.com/gpu/driver
`

// pushed describes the result of push, for its output.
type pushed struct {
	Image  string `json:"image"`
	Digest string `json:"digest"` // the image by its digest
	image.Modules
}

func pushCommand(ctx context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("push", pushUsage, stdout)
	var dir, release, format string
	o.StringVar(&dir, "modules", "", "folder with the modules of a kernel, or with their halves")
	o.StringVar(&release, "kernel", "", "release of the kernel, as uname -r prints it there")
	o.addText(&o.version, "driver-version", "DRIVER_VERSION", "", "version that the modules have to have")
	o.addText(&o.image, "base", "DRIVER_IMAGE", "", "image of the driver to which the layer is added")
	o.addText(&o.repository, "repository", "PREBUILD_REPOSITORY", "", "repository to push to: registry.example.com/gpu/driver")
	o.addRegistry()
	o.addSigning()
	o.addImageRoot()
	o.addSourceDir()
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), o.RefuseArgs(), checkOutput(format)); err != nil {
		return err
	}
	for flag, value := range map[string]string{"modules": dir, "kernel": release, "base": o.image, "repository": o.repository} {
		if value == "" {
			return program.UsageErrorf("push needs --%s; see gpu-driver push --help", flag)
		}
	}
	if err := o.checkSources(); err != nil {
		return err
	}
	p := pushed{Modules: image.Modules{Kernel: release, Version: o.version}}
	tag, err := nvidia.DriverTag(o.version, release, o.osTag)
	if err != nil {
		return err
	}
	p.Image = o.repository + ":" + tag
	if err := o.prepareModules(ctx, dir, &p.Modules); err != nil {
		return withReasonCode(err)
	}
	layer, err := image.NewLayer(dir, image.ModulesDir(release))
	if err != nil {
		return err
	}
	if p.Digest, err = (image.Registry{Insecure: o.insecure}).Push(ctx, o.image, p.Image, layer, p.Modules); err != nil {
		return err
	}
	if format == "json" {
		return writeJSON(stdout, p)
	}
	fmt.Fprintf(stdout, "%s\n%s\n%s modules of driver %s for kernel %s: %s\n", p.Image, p.Digest, p.Kind, p.Version, p.Kernel, strings.Join(p.Names, " "))
	return nil
}

// prepareModules verifies the modules in a folder, or their halves, signs them if there is
// a key, and describes them in m.
func (o *options) prepareModules(ctx context.Context, dir string, m *image.Modules) error {
	byKind, err := findModules(dir)
	if err != nil {
		return err
	}
	halves, err := filepath.Glob(filepath.Join(dir, image.HalvesName, "*", link.FileName))
	if err != nil {
		return err
	}
	switch {
	case len(byKind)+len(halves) == 0:
		return fmt.Errorf("%s has no module nvidia.ko: it is not an output folder of gpu-driver build", dir)
	case len(byKind)+len(halves) > 1:
		return fmt.Errorf("%s has modules of several kinds, or modules and halves: push them one after the other", dir)
	case len(halves) == 1:
		err = o.describeHalves(filepath.Dir(halves[0]), m)
	default:
		err = o.describeModules(dir, byKind, m)
	}
	if err != nil {
		return err
	}
	slices.Sort(m.Names)
	return o.addSourcesDigest(ctx, m)
}

func findModules(dir string) (map[kernel.Kind]kernel.Files, error) {
	root, err := host.Open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // it is only read
	return kernel.FindDrivers(root, "/")
}

func (o *options) describeModules(dir string, byKind map[kernel.Kind]kernel.Files, m *image.Modules) error {
	for kind, files := range byKind {
		m.Kind = string(kind)
		for _, f := range files {
			m.Names = append(m.Names, strings.ReplaceAll(f.Name, "_", "-"))
		}
	}
	if err := kernel.CheckBuilt(dir, m.Names, m.Kernel, m.Version); err != nil {
		return err
	}
	if o.signCertificate == "" {
		return nil
	}
	if o.signKey != "" {
		key, err := sign.LoadKey(o.signKey, o.signCertificate)
		if err == nil {
			err = key.SignAll(dir)
		}
		if err != nil {
			return err
		}
	}
	by, err := sign.LoadCertificate(o.signCertificate)
	for _, name := range m.Names {
		if err == nil {
			err = sign.Verify(filepath.Join(dir, name+".ko"), by)
		}
	}
	if err == nil {
		m.Signer, err = sign.Fingerprint(o.signCertificate)
	}
	return err
}

func (o *options) describeHalves(dir string, m *image.Modules) error {
	if o.signKey != "" || o.signCertificate != "" {
		return program.UsageErrorf("%s has halves of modules, which are signed where they are built: gpu-driver build --halves --sign-key", dir)
	}
	all, err := link.Read(dir)
	if err != nil {
		return err
	}
	if all.Release != m.Kernel || all.Version != m.Version {
		return fmt.Errorf("%s is of driver %s for kernel %s, not of %s for %s", dir, all.Version, all.Release, m.Version, m.Kernel)
	}
	if all.Kind == "" || all.Kind != path.Base(dir) {
		return fmt.Errorf("%s is not a finished output folder of gpu-driver build --halves: it is named %s and has halves of the kind %q", dir, path.Base(dir), all.Kind)
	}
	m.Kind, m.Names = all.Kind, all.Names()
	return nil
}

// addSourcesDigest adds the digest of the modules' sources, if the image has them.
func (o *options) addSourcesDigest(ctx context.Context, m *image.Modules) error {
	dir, err := serve.FindSources(o.sources, o.imageRoot)
	if err != nil {
		return err
	}
	source := serve.SourceFolder(dir, kernel.Kind(m.Kind))
	if !serve.IsSource(source) {
		return nil
	}
	m.Sources, err = folder.DigestFolder(ctx, source)
	return err
}
