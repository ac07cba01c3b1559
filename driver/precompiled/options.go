package main

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/precompiled/recipe"
	"github.com/gpuready/gpuready/internal/program"
)

const exitCodes = `
Exit codes:
  0  done
  1  failed; the reason is on standard error
  2  wrong use: a variable is missing or has a wrong value
`

const help = `precompiled makes images of precompiled drivers.

Usage:
  precompiled COMMAND [flags]

Commands:
  image     compile the driver's modules for each kernel, and make an image of each
  push      push the images that were made to IMAGE_REGISTRY/IMAGE_NAME

precompiled COMMAND --help lists the flags of a command, with their environment variables.
` + exitCodes

const makeUsage = `Compile the driver's modules for each kernel, and make an image of each:
IMAGE_REGISTRY/IMAGE_NAME:DRIVER_VERSION-KERNEL-OS_TAG, in an OCI layout below --out. All
share the layers with the driver's user space. make image, in the folder of an operating
system, runs it with these variables of the environment.

Examples:
  make image KERNEL_VERSION=6.1.0-50-amd64 DRIVER_VERSION=580.95.05 DRIVER_SOURCE=NVIDIA-Linux-x86_64-580.95.05.run
  make image KERNEL_VERSIONS="6.1.0-50-amd64 6.1.0-53-amd64" CONTAINER_TOOL=none HEADERS_ROOT=/
`

const pushUsage = `Push the images that precompiled image has made. Credentials are those in config.json in
the folder DOCKER_CONFIG. make image-push runs it.

Examples:
  make image-push IMAGE_REGISTRY=registry.example.com/gpu
`

type options struct {
	*program.Flags
	recipe.Settings
	kernels, kernel, toolkits, packages, modules string
	cudaVersion, cudaDist, epoch                 string
	insecure                                     []string
	output, logFormat                            string
}

func newOptions(usage string, stdout io.Writer) *options {
	call := "precompiled " + strings.Fields(map[string]string{makeUsage: "image", pushUsage: "push"}[usage])[0]
	o := &options{Flags: program.NewFlags(call, usage, exitCodes, stdout)}
	for _, f := range []struct {
		to                           *string
		name, variable, value, usage string
	}{
		{&o.OS, "os", "PRECOMPILED_OS", "", "operating system of the nodes: amzn2023, azurelinux3, debian12, debian13, rhcos4, rhel8, rhel9, rhel10, sles15, sles16, ubuntu22.04, ubuntu24.04, ubuntu26.04"},
		{&o.Recipes, "recipes", "PRECOMPILED_RECIPES", "driver/precompiled", "folder with a folder for each operating system"},
		{&o.Program, "program", "PRECOMPILED_PROGRAM", "bin/gpu-driver", "gpu-driver, which compiles"},
		{&o.Out, "out", "OUTPUT_DIR", "bin/precompiled", "folder for images and downloads"},
		{&o.DriverVersion, "driver-version", "DRIVER_VERSION", "", "version of the driver, 580.95.05"},
		{&o.DriverType, "driver-type", "DRIVER_TYPE", "passthrough", "only passthrough: drivers of vGPU are not precompiled"},
		{&o.Kind, "kernel-module-type", "KERNEL_MODULE_TYPE", "auto", "open, proprietary, or auto: both up to driver 580, then open"},
		{&o.modules, "modules", "DRIVER_MODULES", "nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem", "modules to compile"},
		{&o.kernels, "kernel-versions", "KERNEL_VERSIONS", "", "several kernels, each as uname -r prints it"},
		{&o.kernel, "kernel-version", "KERNEL_VERSION", "", "one kernel; with DRIVER_TOOLKIT_IMAGE the default is the one that the image is for"},
		{&o.OSTag, "os-tag", "OS_TAG", "", "last part of the tag: rhcos4.12, rhel9.6, ubuntu22.04"},
		{&o.TargetArch, "target-arch", "TARGET_ARCH", "", "x86_64 or aarch64, on a machine of which the modules are compiled (default: this machine's)"},
		{&o.Source, "driver-source", "DRIVER_SOURCE", "", "NVIDIA's installer (.run), its address, or a folder into which it or packages were unpacked (default: NVIDIA's address)"},
		{&o.SHA256, "driver-sha256", "DRIVER_SHA256", "", "SHA-256 of the installer; required for an address"},
		{&o.packages, "driver-packages", "DRIVER_PACKAGES", "", "the distribution's packages of the driver, in place of an installer (Debian, Ubuntu, RHEL)"},
		{&o.Fabric, "fabric", "FABRIC", "auto", "whether the image has fabric manager, nvlsm, IMEX, nscq and nvsdm for machines with NVSwitches: on, off, or auto: if they can be had"},
		{&o.FabricRepository, "fabric-repository", "FABRIC_REPOSITORY", "", "address of a CUDA repository with their packages (default: NVIDIA's for the operating system)"},
		{&o.FabricKey, "fabric-key", "FABRIC_KEY_FILE", "", "key that signs it (default: NVIDIA's, which is fetched and checked by its fingerprint)"},
		{&o.FabricPackages, "fabric-packages-dir", "FABRIC_PACKAGES_DIR", "", "folder with their packages, in place of a repository"},
		{&o.OpenShiftVersion, "openshift-version", "OPENSHIFT_VERSION", "", "4.12.13; OS_TAG follows from it"},
		{&o.toolkits, "driver-toolkit-image", "DRIVER_TOOLKIT_IMAGE", "", "image of OpenShift's Driver Toolkit, one for all kernels or one for each"},
		{&o.RHELVersion, "rhel-version", "RHEL_VERSION", "", "9.4"},
		{&o.RHELMajor, "rhel-major", "RHEL_MAJOR", "", "9; must agree with RHEL_VERSION"},
		{&o.PullSecretFile, "pull-secret-file", "PULL_SECRET_FILE", "", "credentials for the images that compile"},
		{&o.RHSMOrgFile, "rhsm-org-file", "RHSM_ORG_FILE", "", "file with the organisation of the Red Hat subscription"},
		{&o.RHSMKeyFile, "rhsm-activationkey-file", "RHSM_ACTIVATIONKEY_FILE", "", "file with its activation key"},
		{&o.ContainerTool, "container-tool", "CONTAINER_TOOL", "", "podman, docker, buildah, or none: this machine compiles (default: the first that is there)"},
		{&o.BuilderImage, "builder-image", "BUILDER_IMAGE", "", "image that compiles (default: the one that the recipe names); headers and a compiler that it has are not installed again"},
		{&o.HeadersRoot, "headers-root", "HEADERS_ROOT", "/", "folder below which the kernels' headers are installed, with CONTAINER_TOOL=none"},
		{&o.BuilderUser, "builder-user", "BUILDER_USER", git("user.name"), "author of the image, in its label org.opencontainers.image.authors"},
		{&o.BuilderEmail, "builder-email", "BUILDER_EMAIL", git("user.email"), "the author's e-mail address"},
		{&o.BaseImage, "base-image", "BASE_IMAGE", "bin/images/driver.tar", "gpuready/driver: an archive, or an image in a registry"},
		{&o.ImageRegistry, "image-registry", "IMAGE_REGISTRY", "localhost", "where images are pushed to: registry.example.com/gpu"},
		{&o.ImageName, "image-name", "IMAGE_NAME", "driver", "name of the images there"},
		{&o.SignKey, "sign-key", "SIGN_KEY_FILE", "", "key that signs the modules for Secure Boot, RSA in PEM"},
		{&o.SignCertificate, "sign-certificate", "SIGN_CERTIFICATE_FILE", "", "its certificate"},
		{&o.cudaVersion, "cuda-version", "CUDA_VERSION", "", "no effect: images have no CUDA in them"},
		{&o.cudaDist, "cuda-dist", "CUDA_DIST", "", "no effect, as CUDA_VERSION"},
		{&o.epoch, "driver-epoch", "DRIVER_EPOCH", "", "no effect: NVIDIA's RPM packages, of which it is, are not used"},
	} {
		o.StringVar(f.to, f.name, f.value, f.usage)
		o.Env[f.name] = f.variable
	}
	o.StringSliceVar(&o.insecure, "insecure", nil, "registries that are queried by plain HTTP, HOST:PORT")
	o.Env["insecure"] = "IMAGE_INSECURE"
	o.StringVarP(&o.output, "output", "o", "table", "table or json")
	o.AddLogFormat(&o.logFormat)
	return o
}

// git returns a setting of git; "" if it is not set.
func git(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "config", "--get", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// settings returns the checked settings of the flags and variables.
func (o *options) settings(stderr io.Writer) (*recipe.Settings, error) {
	s := &o.Settings
	log, err := program.NewLog(stderr, "precompiled", o.logFormat, "")
	if err != nil {
		return nil, err
	}
	s.Log = log
	if o.kernels != "" && o.kernel != "" {
		log.Info("KERNEL_VERSIONS is used, and not KERNEL_VERSION")
	}
	if o.kernels == "" {
		o.kernels = o.kernel
	}
	s.Kernels, s.DriverToolkitImages = strings.Fields(o.kernels), strings.Fields(o.toolkits)
	s.Packages, s.Modules = strings.Fields(o.packages), strings.Fields(o.modules)
	s.Registry.Insecure = o.insecure
	if o.output != "table" && o.output != "json" {
		return nil, program.UsageErrorf("--output: %q is neither table nor json", o.output)
	}
	if err := s.Complete(); err != nil {
		return nil, program.UsageErrorf("%w", err)
	}
	return s, nil
}
