package nvidia

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// Names and versions of NVIDIA's images. The folder is no registry's: nodes have the images
// before anything is installed.
const (
	repository      = "gpuready.test/theirs" // not a mirror of NVIDIA's, which has no driver for the nodes' system
	operatorVersion = "v24.3.0"              // the release that the operator's commit became
	driverManager   = "v0.6.8"
	// DriverVersion is the version that NVIDIA's chart installs by default.
	DriverVersion = "550.54.15"
)

// Built holds the programs and images of both stacks, NVIDIA's and ours.
type Built struct {
	Base   []string // archives that every cluster's nodes need: NFD, and a user's job
	Stacks []string // archives of both stacks, which nodes need beside that or pull from a Registry

	bin                       string // what make built
	kubectl                   string
	operator, plugin, toolkit binaries.Project // NVIDIA's, as downloaded
	nfd                       binaries.Project
}

// Build builds what is not in the cache yet, and makes NVIDIA's images. In the folder bin
// lies what make built of this tree. out shows progress and may be nil.
func Build(ctx context.Context, bin string, out io.Writer) (*Built, error) {
	o := binaries.Options{Out: out}
	theirs, err := binaries.EnsureNVIDIA(ctx, o)
	if err != nil {
		return nil, err
	}
	features, err := binaries.EnsureNFD(ctx, o)
	if err != nil {
		return nil, err
	}
	cluster, err := binaries.Ensure(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &Built{bin: bin, kubectl: cluster.Path("kubectl")}
	for _, p := range []struct {
		to              *binaries.Project
		folder, project string
	}{
		{&b.operator, "nvidia-operator", "github.com/NVIDIA/gpu-operator"},
		{&b.plugin, "nvidia-plugin", "github.com/NVIDIA/k8s-device-plugin"},
		{&b.toolkit, "nvidia-toolkit", "github.com/NVIDIA/nvidia-container-toolkit"},
		{&b.nfd, "nfd", "sigs.k8s.io/node-feature-discovery"},
	} {
		if *p.to, err = binaries.EnsureProject(ctx, o, p.folder, p.project); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(bin, "nvidia-images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, make := range []func(binaries.Dir) (binaries.Image, error){b.operatorImage, b.validatorImage, b.toolkitImage, b.pluginImage, b.driverImage, b.managerImage} {
		i, err := make(theirs)
		if err != nil {
			return nil, fmt.Errorf("make NVIDIA's images: %w", err)
		}
		if err := write(&b.Stacks, dir, i); err != nil {
			return nil, err
		}
	}
	for _, make := range []func(binaries.Dir) (binaries.Image, error){b.nfdImage, b.jobImage} {
		i, err := make(features)
		if err != nil {
			return nil, err
		}
		if err := write(&b.Base, dir, i); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"operator", "toolkit", "device-plugin", "validator"} {
		archive := filepath.Join(bin, "images", name+".tar")
		if _, err := os.Stat(archive); err != nil {
			return nil, fmt.Errorf("%w: run make images", err)
		}
		b.Stacks = append(b.Stacks, archive)
	}
	return b, nil
}

// write writes the archive of an image and adds it to a list.
func write(archives *[]string, dir string, i binaries.Image) error {
	archive := filepath.Join(dir, filepath.Base(i.Name)+".tar")
	*archives = append(*archives, archive)
	return binaries.WriteImage(archive, i)
}

// tagged is the full name of one of NVIDIA's images.
func tagged(component, version string) string { return repository + "/" + component + ":" + version }

// operatorImage is their docker/Dockerfile: the program, and what it applies.
func (b *Built) operatorImage(built binaries.Dir) (binaries.Image, error) {
	r, err := newRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	const opt = "/opt/gpu-operator"
	err = first(
		r.addProgram("/usr/bin/gpu-operator", built.Path("gpu-operator")),
		r.addFolder(opt, filepath.Join(b.operator.Dir, "assets")),
		r.addFolder(opt+"/manifests", filepath.Join(b.operator.Dir, "manifests")),
		r.addFolder(opt, filepath.Join(b.operator.Dir, "deployments/gpu-operator/crds")),
	)
	return binaries.Image{
		Name: tagged("gpu-operator", operatorVersion), Files: r.files, Links: r.links, User: "1000",
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, Entrypoint: []string{"/usr/bin/gpu-operator"},
	}, err
}

// validatorImage is their validator/Dockerfile. The vectorAdd of their CUDA samples cannot
// be had; ours stands in.
func (b *Built) validatorImage(built binaries.Dir) (binaries.Image, error) {
	r, err := newRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	const manifests = "/var/nvidia/manifests/"
	err = first(
		r.addProgram("/usr/bin/nvidia-validator", built.Path("nvidia-validator")),
		r.addProgram("/usr/bin/vectorAdd", filepath.Join(b.bin, "vectoradd")),
		r.addFile(manifests+"plugin-workload-validation.yaml", filepath.Join(b.operator.Dir, "validator/plugin-workload-validation.yaml")),
		r.addFile(manifests+"cuda-workload-validation.yaml", filepath.Join(b.operator.Dir, "validator/cuda-workload-validation.yaml")),
		r.addLibrary("libdl.so.2"), // libnvidia-ml and libcuda, which are injected, want it
		r.addLibrary("libm.so.6"),
	)
	return binaries.Image{
		Name: tagged("gpu-operator-validator", operatorVersion), Files: r.files, Links: r.links, Entrypoint: []string{"/bin/bash"},
		Env: []string{"NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=utility,compute"},
	}, err
}

// toolkitImage is their deployments/container/Dockerfile. libnvidia-container and its
// nvidia-container-cli, which are C, cannot be had; the installer copies empty ones, and
// the runtime's default mode (jit-cdi) uses neither.
func (b *Built) toolkitImage(built binaries.Dir) (binaries.Image, error) {
	r, err := newRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	const artifacts = "/artifacts/deb/usr/bin/"
	err = first(
		r.addProgram("/work/nvidia-ctk-installer", built.Path("nvidia-ctk-installer")),
		r.addProgram(artifacts+"nvidia-ctk", built.Path("nvidia-ctk")),
		r.addProgram(artifacts+"nvidia-cdi-hook", built.Path("nvidia-cdi-hook")),
		r.addProgram(artifacts+"nvidia-container-runtime", built.Path("nvidia-container-runtime")),
		r.addProgram(artifacts+"nvidia-container-runtime-hook", built.Path("nvidia-container-runtime-hook")),
		r.addProgram(artifacts+"nvidia-container-runtime.cdi", built.Path("nvidia-container-runtime.cdi")),
		r.addProgram(artifacts+"nvidia-container-runtime.legacy", built.Path("nvidia-container-runtime.legacy")),
	)
	r.links["/work/nvidia-toolkit"] = "/work/nvidia-ctk-installer"
	r.files[artifacts+"nvidia-container-cli"] = []byte("#!/bin/sh\necho nvidia-container-cli cannot be had >&2\nexit 1\n")
	for _, library := range []string{"libnvidia-container.so.1", "libnvidia-container-go.so.1"} {
		r.files["/artifacts/deb/usr/lib/x86_64-linux-gnu/"+library] = []byte{}
	}
	return binaries.Image{
		Name: tagged("container-toolkit", b.toolkit.Version), Files: r.files, Links: r.links, Entrypoint: []string{"/work/nvidia-ctk-installer"},
		Env: []string{
			"PATH=/work:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=utility",
			// This release's operator knows toolkits that edit containerd's main configuration file;
			// this toolkit has to be told where drop-ins are. Later operators do so themselves.
			"RUNTIME_DROP_IN_CONFIG=/runtime/config-dir/conf.d/99-nvidia.toml",
			"RUNTIME_DROP_IN_CONFIG_HOST_PATH=/etc/containerd/conf.d/99-nvidia.toml",
		},
	}, err
}

// pluginImage is their deployments/container/Dockerfile: plugin, feature discovery and
// configuration manager.
func (b *Built) pluginImage(built binaries.Dir) (binaries.Image, error) {
	r, err := newRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	err = first(
		r.addProgram("/usr/bin/nvidia-device-plugin", built.Path("nvidia-device-plugin")),
		r.addProgram("/usr/bin/gpu-feature-discovery", built.Path("gpu-feature-discovery")),
		r.addProgram("/usr/bin/config-manager", built.Path("config-manager")),
		r.addLibrary("libdl.so.2"), // as for the validator
		r.addLibrary("libm.so.6"),
	)
	return binaries.Image{
		Name: tagged("k8s-device-plugin", b.plugin.Version), Files: r.files, Links: r.links, Entrypoint: []string{"nvidia-device-plugin"},
		Env: []string{"NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"},
	}, err
}

// driverRoot builds the image that stands in for their driver container and driver manager.
func (b *Built) driverRoot() (*root, error) {
	r, err := newRoot()
	if err != nil {
		return nil, err
	}
	const program = "/usr/local/bin/nvidia-driver"
	err = first(
		r.addFile(program, filepath.Join(b.bin, "nvidia-driver")),
		r.addProgram("/usr/bin/gpusim", filepath.Join(b.bin, "gpusim")),
		r.addFolder("/usr/lib/gpusim", filepath.Join(b.bin, "lib")),
		r.addNeeded(filepath.Join(b.bin, "lib/nvidia-smi")),
		r.addNeeded(filepath.Join(b.bin, "lib/libnvidia-ml.so")),
		r.addNeeded(filepath.Join(b.bin, "lib/libcuda.so")),
	)
	for _, name := range []string{"nvidia-smi", "driver-manager"} {
		r.links["/usr/local/bin/"+name] = "nvidia-driver"
	}
	return r, err
}

func (b *Built) driverImage(binaries.Dir) (binaries.Image, error) {
	r, err := b.driverRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	tag, err := osTag()
	return binaries.Image{Name: tagged("driver", DriverVersion+"-"+tag), Files: r.files, Links: r.links, Entrypoint: []string{"nvidia-driver", "init"}}, err
}

func (b *Built) managerImage(binaries.Dir) (binaries.Image, error) {
	r, err := b.driverRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	return binaries.Image{Name: tagged("k8s-driver-manager", driverManager), Files: r.files, Links: r.links, Entrypoint: []string{"driver-manager"}}, nil
}

// jobImage is a user's, who has nothing to do with either stack.
func (b *Built) jobImage(binaries.Dir) (binaries.Image, error) {
	r, err := newRoot()
	if err != nil {
		return binaries.Image{}, err
	}
	err = first(
		r.addProgram("/usr/bin/vectoradd", filepath.Join(b.bin, "vectoradd")),
		r.addLibrary("libdl.so.2"),
		r.addLibrary("libm.so.6"),
	)
	return binaries.Image{Name: jobImage, Files: r.files, Links: r.links, Entrypoint: []string{"/usr/bin/vectoradd"}}, err
}

// first is the first of some errors.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
