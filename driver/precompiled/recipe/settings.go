// Package recipe builds images of precompiled drivers, one for each kernel. They share a layer
// with the driver's user space, and each has one small layer of its own.
//
// A container tool compiles, in an image with the kernel's headers and compiler. The rest needs
// no tool. The same input gives layers with the same bytes.
package recipe

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/nvidia"
)

// Settings holds the variables of the recipe. Those of NVIDIA's recipe have the same names.
type Settings struct {
	OS      string // folder of the recipe: "rhcos4"
	Recipes string // folder that has the folder OS
	Program string // gpu-driver, static, for TargetArch
	Out     string // folder for images and downloads

	DriverVersion string
	DriverType    string
	Kind          string // KERNEL_MODULE_TYPE
	Modules       []string
	Kernels       []string // KERNEL_VERSIONS, KERNEL_VERSION
	OSTag         string
	TargetArch    string // "x86_64" or "aarch64"

	Source   string // DRIVER_SOURCE: file, URL or folder
	SHA256   string // of a file or URL
	Packages []string

	Fabric           string // FABRIC
	FabricRepository string // address; "": NVIDIA's
	FabricKey        string // file with the key that signs it; "": NVIDIA's
	FabricPackages   string // FABRIC_PACKAGES_DIR: folder with packages, in place of a repository

	OpenShiftVersion    string
	DriverToolkitImages []string // one for all kernels, or one for each
	RHELVersion         string
	RHELMajor           string
	PullSecretFile      string
	RHSMOrgFile         string
	RHSMKeyFile         string

	ContainerTool string
	BuilderImage  string
	HeadersRoot   string
	BuilderUser   string
	BuilderEmail  string

	BaseImage     string // archive or reference
	ImageRegistry string
	ImageName     string
	Registry      image.Registry

	SignKey, SignCertificate string

	Log *slog.Logger
}

// defaultModules lists the modules that a driver container may load.
var defaultModules = []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"}

// system describes a supported operating system, which has a folder.
type system struct {
	family family
	image  string // that compiles where no other is named; of RHEL without its version
	rhel   string // that version
	tag    string // OS_TAG where none is given; "": it has to be
}

// family names the Containerfile of several systems. Its stage "build" installs the compiler
// and HEADERS_PACKAGES, the headers of KERNEL_VERSION, unless BUILDER_IMAGE has them.
type family string

const (
	apt   family = "apt"
	rhel  family = "rhel"  // with a subscription, or packages that anybody may install
	rpm   family = "rpm"   // Amazon's and Microsoft's
	rhcos family = "rhcos" // OpenShift's Driver Toolkit has them
	suse  family = "suse"
)

var systems = map[string]system{
	"debian12":    {apt, "docker.io/library/debian:bookworm", "", "debian12"},
	"debian13":    {apt, "docker.io/library/debian:trixie", "", "debian13"},
	"ubuntu22.04": {apt, "docker.io/library/ubuntu:22.04", "", "ubuntu22.04"},
	"ubuntu24.04": {apt, "docker.io/library/ubuntu:24.04", "", "ubuntu24.04"},
	"ubuntu26.04": {apt, "docker.io/library/ubuntu:26.04", "", "ubuntu26.04"},
	"amzn2023":    {rpm, "public.ecr.aws/amazonlinux/amazonlinux:2023", "", "amzn2023"},
	"azurelinux3": {rpm, "mcr.microsoft.com/azurelinux/base/core:3.0", "", "azurelinux3.0"},
	"rhel8":       {rhel, "registry.access.redhat.com/ubi8/ubi:", "8.10", ""},
	"rhel9":       {rhel, "registry.access.redhat.com/ubi9/ubi:", "9.6", ""},
	"rhel10":      {rhel, "registry.access.redhat.com/ubi10/ubi:", "10.0", "rhel10"},
	"rhcos4":      {rhcos, "", "", ""},
	"sles15":      {suse, "registry.suse.com/bci/bci-base:15.6", "", ""},
	"sles16":      {suse, "registry.suse.com/bci/bci-base:16.0", "", ""},
}

// nameHeaders returns the package with the headers of a kernel, as the package manager of its
// family takes it; "" for rhcos.
func nameHeaders(f family, release string) string {
	base, flavour, _ := strings.Cut(release, "+")
	switch {
	case f == apt:
		return "linux-headers-" + release
	case f == suse: // 6.4.0-150600.23.47-default
		i := strings.LastIndexByte(release, '-')
		return "kernel-" + release[i+1:] + "-devel=" + release[:max(i, 0)]
	case f == rhcos:
		return ""
	case flavour != "": // 5.14.0-570.12.1.el9_6.aarch64+64k
		return "kernel-" + flavour + "-devel-" + base
	case f == rhel && strings.Contains(base, ".rt"): // 4.18.0-553.rt7.342.el8_10.x86_64, before 9.3
		return "kernel-rt-devel-" + base
	}
	return "kernel-devel-" + base
}

// builderImage returns the image that compiles for the n-th kernel, and its RHEL version.
func (s *Settings) builderImage(n int) (image, rhelVersion string) {
	o := systems[s.OS]
	rhelVersion = cmp.Or(s.RHELVersion, o.rhel)
	switch {
	case s.BuilderImage != "":
		image = s.BuilderImage
	case len(s.DriverToolkitImages) > 0:
		image = s.DriverToolkitImages[min(n, len(s.DriverToolkitImages)-1)]
	case o.family == rhel:
		image = o.image + rhelVersion
	default:
		image = o.image
	}
	return image, rhelVersion
}

// NoTool is the value of CONTAINER_TOOL that makes this machine compile.
const NoTool = "none"

// containerTools lists the container tools to look for, in this order.
var containerTools = []string{"podman", "docker", "buildah"}

var versionPattern = regexp.MustCompile(`^\d+\.\d+(\.\d+)?$`)

// Complete sets defaults that depend on other settings, and checks all settings. The error
// names all problems.
func (s *Settings) Complete() error {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	o, known := systems[s.OS]
	if !known {
		return fmt.Errorf("there is no recipe for %q; there are those in driver/precompiled", record.Clean(s.OS, 100))
	}
	if len(s.Modules) == 0 {
		s.Modules = defaultModules
	}
	if s.OpenShiftVersion != "" && s.OSTag == "" {
		s.OSTag = tagOfOpenShift(s.OpenShiftVersion, s.RHELVersion)
	}
	if s.OSTag == "" {
		s.OSTag = o.tag
	}
	if s.OSTag == "" && strings.HasPrefix(s.OS, "rhel") && s.RHELVersion != "" {
		s.OSTag = "rhel" + s.RHELVersion
	}
	if s.TargetArch == "" {
		s.TargetArch = machineArch()
	}
	if s.ContainerTool == "" {
		s.ContainerTool = findTool()
	}
	return errors.Join(s.checkDriver(), s.checkSystem(o), s.checkImage())
}

// tagOfOpenShift returns the tag of an OpenShift release: from 4.19 on it is RHEL's.
func tagOfOpenShift(version, rhel string) string {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 {
		return ""
	}
	if major == 4 && minor < 19 {
		return fmt.Sprintf("rhcos4.%d", minor)
	}
	if rhel == "" {
		return ""
	}
	return "rhel" + rhel
}

// machineArch returns this machine's architecture in the spelling of kernels and NVIDIA's
// installers.
func machineArch() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}

func findTool() string {
	for _, t := range containerTools {
		if _, err := exec.LookPath(t); err == nil {
			return t
		}
	}
	return ""
}

func (s *Settings) checkDriver() error {
	var all []error
	addError := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if !versionPattern.MatchString(s.DriverVersion) {
		addError("DRIVER_VERSION is %q; it is a whole version, such as 580.95.05", record.Clean(s.DriverVersion, 100))
	}
	if s.DriverType != "" && s.DriverType != "passthrough" {
		addError("DRIVER_TYPE is %q; drivers of vGPU are not precompiled: leave it, or set passthrough", record.Clean(s.DriverType, 100))
	}
	if kind, err := kernel.ParseKind(s.Kind); err != nil {
		addError("KERNEL_MODULE_TYPE: %w", err)
	} else {
		s.Kind = string(kind)
	}
	if s.Fabric = cmp.Or(s.Fabric, fabricAuto); !slices.Contains([]string{fabricAuto, fabricOn, fabricOff}, s.Fabric) {
		addError("FABRIC is %q; it is one of %s, %s, %s", record.Clean(s.Fabric, 50), fabricAuto, fabricOn, fabricOff)
	}
	if s.FabricRepository != "" && !strings.HasPrefix(s.FabricRepository, "https://") && !strings.HasPrefix(s.FabricRepository, "http://") || strings.ContainsAny(s.FabricRepository, " \t\n'\"") {
		addError("FABRIC_REPOSITORY is %q; it is the address of a repository", record.Clean(s.FabricRepository, 200))
	}
	isURL := strings.Contains(s.Source, "://")
	switch {
	case s.Source != "" && len(s.Packages) > 0:
		addError("DRIVER_SOURCE and DRIVER_PACKAGES exclude each other: set one")
	case isURL && !strings.HasPrefix(s.Source, "https://") && !strings.HasPrefix(s.Source, "http://"):
		addError("DRIVER_SOURCE: %q is neither a file, a folder nor an address with https", record.Clean(s.Source, 200))
	case (isURL || s.Source == "" && len(s.Packages) == 0) && s.SHA256 == "":
		addError("DRIVER_SHA256 is not set; it is the SHA-256 of the installer at %s: NVIDIA publishes it beside the file, with the suffix .sha256sum", s.installerURL())
	}
	if info, err := os.Stat(s.Source); s.SHA256 != "" && (len(s.Packages) > 0 || err == nil && info.IsDir()) {
		addError("DRIVER_SHA256 is for an installer, and the driver is taken from a folder or packages")
	}
	if s.SHA256 != "" && !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(s.SHA256) {
		addError("DRIVER_SHA256 is not a SHA-256, which has 64 of the digits 0-9a-f")
	}
	return errors.Join(all...)
}

// installerURL returns the URL of the installer.
func (s *Settings) installerURL() string {
	if s.Source != "" {
		return s.Source
	}
	return fmt.Sprintf("https://us.download.nvidia.com/tesla/%s/NVIDIA-Linux-%s-%[1]s.run", s.DriverVersion, s.TargetArch)
}

func (s *Settings) checkSystem(o system) error {
	var all []error
	addError := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if s.TargetArch != machineArch() {
		addError("TARGET_ARCH is %s, and this machine is %s: modules are compiled on a machine of their architecture", record.Clean(s.TargetArch, 50), machineArch())
	}
	for _, k := range s.Kernels {
		all = append(all, s.checkKernel(k))
	}
	for _, m := range s.Modules {
		if !namePattern.MatchString(m) {
			addError("DRIVER_MODULES: %q is not the name of a module", record.Clean(m, 100))
		}
	}
	for _, p := range s.Packages {
		if !packagePattern.MatchString(p) {
			addError("DRIVER_PACKAGES: %q is not the name of a package", record.Clean(p, 100))
		}
	}
	if major, _, _ := strings.Cut(s.RHELVersion, "."); s.RHELMajor != "" && s.RHELVersion != "" && major != s.RHELMajor {
		addError("RHEL_MAJOR is %s, and RHEL_VERSION is %s", s.RHELMajor, s.RHELVersion)
	}
	switch n := len(s.DriverToolkitImages); {
	case o.family == rhcos && n == 0 && s.BuilderImage == "" && s.ContainerTool != NoTool:
		addError("DRIVER_TOOLKIT_IMAGE is not set: oc adm release info --image-for=driver-toolkit prints it")
	case n > 1 && n != len(s.Kernels) && len(s.Kernels) > 0:
		addError("DRIVER_TOOLKIT_IMAGE names %d images for %d kernels: name one, or one for each", n, len(s.Kernels))
	}
	if len(s.Kernels) == 0 && len(s.DriverToolkitImages) == 0 {
		addError("KERNEL_VERSION is not set; or KERNEL_VERSIONS, for several")
	}
	if len(s.Packages) > 0 && (o.family == suse || o.family == rpm) {
		addError("DRIVER_PACKAGES: packages are not taken on %s; set DRIVER_SOURCE", s.OS)
	}
	for name, file := range map[string]string{"PULL_SECRET_FILE": s.PullSecretFile, "RHSM_ORG_FILE": s.RHSMOrgFile, "RHSM_ACTIVATIONKEY_FILE": s.RHSMKeyFile} {
		if _, err := os.Stat(file); file != "" && err != nil {
			addError("%s: %w", name, err)
		}
	}
	switch {
	case s.ContainerTool == "":
		addError("CONTAINER_TOOL is not set, and none of %s is on this machine; set it to none to compile on this machine itself", strings.Join(containerTools, ", "))
	case s.ContainerTool != NoTool && !slices.Contains(containerTools, s.ContainerTool):
		addError("CONTAINER_TOOL is %q; it is one of %s, %s", record.Clean(s.ContainerTool, 50), strings.Join(containerTools, ", "), NoTool)
	}
	return errors.Join(all...)
}

// Names that go into the Containerfile of a build.
var (
	releasePattern = regexp.MustCompile(`^[0-9][A-Za-z0-9._+-]{0,127}$`)
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,54}$`)
	packagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+:~=_-]{0,199}$`)
)

// checkKernel rejects an invalid kernel release, or one of another architecture.
func (s *Settings) checkKernel(release string) error {
	if !releasePattern.MatchString(release) || strings.Contains(release, "..") {
		return fmt.Errorf("KERNEL_VERSION %q is not the release of a kernel, as uname -r prints it", record.Clean(release, 100))
	}
	plain, _, _ := strings.Cut(release, "+") // 5.14.0-503.11.1.el9_5.aarch64+64k
	if arch := plain[strings.LastIndexByte(plain, '.')+1:]; (arch == "x86_64" || arch == "aarch64") && arch != s.TargetArch {
		return fmt.Errorf("KERNEL_VERSION %s is of %s, and TARGET_ARCH is %s", release, arch, s.TargetArch)
	}
	_, err := s.tag(release)
	return err
}

func (s *Settings) checkImage() error {
	var all []error
	if s.SignKey != "" && s.SignCertificate == "" {
		all = append(all, errors.New("SIGN_KEY_FILE needs SIGN_CERTIFICATE_FILE, by which the kernel identifies the key"))
	}
	if err := image.CheckRepository(s.repository()); err != nil {
		all = append(all, fmt.Errorf("IMAGE_REGISTRY, IMAGE_NAME: %w", err))
	}
	if s.OSTag == "" {
		all = append(all, errors.New("OS_TAG is not set: the tag of the operating system in the image tags of the operator, rhcos4.18 or rhel9.6; it also follows from OPENSHIFT_VERSION and RHEL_VERSION"))
		return errors.Join(all...)
	}
	_, err := s.tag("6.1")
	return errors.Join(append(all, err)...)
}

func (s *Settings) repository() string { return s.ImageRegistry + "/" + s.ImageName }

func (s *Settings) tag(release string) (string, error) {
	return nvidia.DriverTag(s.DriverVersion, release, s.OSTag)
}
