package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/serve"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
)

// options are the flags of a command.
type options struct {
	*program.Flags
	imageRoot, modules, conf, root   string
	stateDir, outputDir, listen      string
	sources, headers, cache, work    string
	version, shared                  string
	signKey, signCertificate         string
	repository, image, osTag         string
	insecure                         []string
	kind, digest, logFormat, level   string
	drm, peermem, openOnly, noDevice bool
}

func newOptions(command, usage string, stdout io.Writer) *options {
	return &options{Flags: program.NewFlags("gpu-driver "+command, usage, exitCodes, stdout)}
}

// addText adds a flag with a value and its environment variable.
func (o *options) addText(to *string, name, variable, value, usage string) {
	o.StringVar(to, name, value, usage)
	o.Env[name] = variable
}

func (o *options) addSwitch(to *bool, name, variable, usage string) {
	o.BoolVar(to, name, false, usage)
	o.Env[name] = variable
}

// addSurvey adds the flags for what to load, and from where.
func (o *options) addSurvey() {
	o.addImageRoot()
	o.addText(&o.modules, "kernel-modules", "KERNEL_MODULES", "/lib/modules", "folder of the kernel's own modules, the host's")
	o.addText(&o.conf, "conf-dir", "DRIVER_CONF_DIR", "/drivers", "folder of parameters, MODULE.conf with NAME=VALUE words")
	o.addText(&o.kind, "kernel-module-type", "KERNEL_MODULE_TYPE", string(kernel.Auto), "auto (by the GPUs), open or proprietary")
	o.addSwitch(&o.openOnly, "open-kernel-modules", "OPEN_KERNEL_MODULES_ENABLED", "the older spelling of --kernel-module-type open")
	o.addSwitch(&o.drm, "drm", "NVIDIA_DRM_ENABLED", "load nvidia-drm, too")
	o.addSwitch(&o.peermem, "gpu-direct-rdma", "GPU_DIRECT_RDMA_ENABLED", "load nvidia-peermem, too")
	o.addText(&o.digest, "config-digest", "DRIVER_CONFIG_DIGEST", "", "digest of other configuration: a change reloads the driver")
	o.addSwitch(&o.noDevice, "without-gpu", "WITHOUT_GPU", "load the driver even if the PCI bus has no GPU, for example before one is plugged in")
}

func (o *options) addImageRoot() {
	o.addText(&o.imageRoot, "image-root", "IMAGE_ROOT", "/driver", "folder of the image with the driver's user space, modules (lib/modules/KERNEL) and firmware")
}

// addState adds the flag for the folder of states.
func (o *options) addState() {
	o.addText(&o.stateDir, "state-dir", "GPUREADY_STATE_DIR", "/run/nvidia/gpuready", "folder of the components' states")
}

// addCache adds the flag for the node's folder of modules and firmware.
func (o *options) addCache() {
	o.addText(&o.cache, "build-cache", "BUILD_CACHE", "", "folder of the node that keeps built and pulled modules, and firmware; empty: none")
}

// addSources adds the flags for the sources of modules that the image does not have.
func (o *options) addSources() {
	o.addSourceDir()
	o.addText(&o.headers, "headers-root", "HEADERS_ROOT", "/", "folder below which the kernel's headers are installed")
	o.addCache()
	o.addText(&o.version, "driver-version", "DRIVER_VERSION", "",
		"required version of built modules; empty: any. OpenShift's Driver Toolkit needs it")
	o.addText(&o.work, "build-dir", "BUILD_DIR", "/var/tmp/gpu-driver", "folder in which modules are built")
	o.addText(&o.repository, "prebuild-repository", "PREBUILD_REPOSITORY", "",
		"where built modules are pulled from and pushed to: registry.example.com/gpu/driver; needs --driver-version and --os-tag; empty: nowhere")
	o.addText(&o.image, "image", "DRIVER_IMAGE", "", "image of this container, to which pushed modules are added; empty: nothing is pushed")
	o.addRegistry()
	o.addSigning()
}

func (o *options) addSourceDir() {
	o.addText(&o.sources, "sources", "DRIVER_SOURCES", "", "folder with kernel-open, kernel or both, the sources of modules that the image lacks (default: IMAGE-ROOT/usr/src/nvidia-*)")
}

// addRegistry adds the flags for pushing and pulling images.
func (o *options) addRegistry() {
	o.addText(&o.osTag, "os-tag", "DRIVER_OS_TAG", "", "the operating system's, in the tags VERSION-KERNEL-OSTAG of images: rhcos4.18")
	o.StringSliceVar(&o.insecure, "prebuild-insecure", nil, "registries to use by plain HTTP, HOST:PORT")
	o.Env["prebuild-insecure"] = "PREBUILD_INSECURE"
}

// addSigning adds the flags for the key that signs modules.
func (o *options) addSigning() {
	o.addText(&o.signKey, "sign-key", "SIGN_KEY_FILE", "", "file of the private key that signs built modules, RSA in PEM; empty: they are not signed")
	o.addText(&o.signCertificate, "sign-certificate", "SIGN_CERTIFICATE_FILE", "", "file of its certificate, PEM or DER; pulled modules must be signed by its key, too")
}

// checkSources rejects flags that contradict each other.
func (o *options) checkSources() error {
	if o.signKey != "" && o.signCertificate == "" {
		return program.UsageErrorf("--sign-key needs --sign-certificate, by which the kernel knows the key")
	}
	if o.repository == "" {
		return nil
	}
	if err := image.CheckRepository(o.repository); err != nil {
		return program.UsageErrorf("--prebuild-repository: %w", err)
	}
	if _, err := nvidia.DriverTag(o.version, "6.1", o.osTag); err != nil {
		return program.UsageErrorf("--prebuild-repository needs --driver-version and --os-tag, of which the tags of its images are made: %w", err)
	}
	return nil
}

// addPlaces adds the flags for the places at which the driver is published.
func (o *options) addPlaces() {
	o.addText(&o.root, "root", "DRIVER_ROOT", "/run/nvidia/driver", "mount point of the driver root")
	o.addState()
	o.addText(&o.outputDir, "output-dir", "OUTPUT_DIR", readiness.DefaultDir, "folder of .driver-ctr-ready")
	o.AddLogFormat(&o.logFormat)
	o.AddLogLevel(&o.level)
}

// openSurvey returns the survey that the flags describe, and a function that closes it.
func (o *options) openSurvey() (serve.Survey, func(), error) {
	for flag, path := range map[string]string{"image-root": o.imageRoot, "kernel-modules": o.modules, "conf-dir": o.conf} {
		if !filepath.IsAbs(path) {
			return serve.Survey{}, nil, program.UsageErrorf("--%s: %q is no absolute path", flag, path)
		}
	}
	kind, err := kernel.ParseKind(o.kind)
	if err != nil {
		return serve.Survey{}, nil, program.UsageErrorf("--kernel-module-type: %w", err)
	}
	if o.openOnly {
		if kind == kernel.Proprietary {
			return serve.Survey{}, nil, program.UsageErrorf("--open-kernel-modules and --kernel-module-type proprietary contradict each other")
		}
		kind = kernel.OpenKind
	}
	own, err := host.Open("/")
	if err != nil {
		return serve.Survey{}, nil, err
	}
	image, err := host.Open(o.imageRoot)
	if err != nil {
		_ = own.Close()
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s is not there: this image holds no driver; use one that does, or name its folder with --image-root", o.imageRoot)
		}
		return serve.Survey{}, nil, err
	}
	return serve.Survey{
		System: kernel.Host, Host: own, Image: image, Modules: o.modules, Conf: o.conf,
		Kind: kind, DRM: o.drm, Peermem: o.peermem, Digest: o.digest, WithoutGPU: o.noDevice,
	}, func() { _ = errors.Join(image.Close(), own.Close()) }, nil
}

// openDriver returns the driver that the flags describe, and a function that closes it.
func (o *options) openDriver(stderr io.Writer) (*serve.Driver, func(), error) {
	for flag, path := range map[string]string{"root": o.root, "state-dir": o.stateDir, "output-dir": o.outputDir} {
		if !filepath.IsAbs(path) {
			return nil, nil, program.UsageErrorf("--%s: %q is no absolute path", flag, path)
		}
	}
	if err := o.checkSources(); err != nil {
		return nil, nil, err
	}
	log, err := program.NewLog(stderr, "driver", o.logFormat, o.level)
	if err != nil {
		return nil, nil, err
	}
	s, closeAll, err := o.openSurvey()
	if err != nil {
		return nil, nil, err
	}
	d, err := serve.New(o.driverConfig(s, log))
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return d, closeAll, nil
}

func (o *options) driverConfig(s serve.Survey, log *slog.Logger) serve.Config {
	return serve.Config{Survey: s, Sources: serve.Sources{
		Dir: o.sources, Root: o.headers, Cache: o.cache, Work: o.work, Version: o.version, Toolkit: o.shared,
		SignKey: o.signKey, SignCertificate: o.signCertificate,
		Prebuilt: serve.Prebuilt{Registry: image.Registry{Insecure: o.insecure}, Repository: o.repository, Image: o.image, OSTag: o.osTag},
	},
		Root: filepath.Clean(o.root), StateDir: o.stateDir, OutputDir: o.outputDir, Listen: o.listen, Log: log}
}

// withReasonCode adds the exit code, and the reason in the text, to an error with a reason.
func withReasonCode(err error) error {
	e, ok := errors.AsType[*kernel.Error](err)
	if !ok {
		return err
	}
	return program.WithExitCode(exitRefused, fmt.Errorf("%s: %w", e.Reason, err))
}
