package recipe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/precompiled/runfile"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// The stages after that of the operating system. The context has the program and the sources;
// the last stage has the output.
const (
	compileStages = `
COPY . /context
RUN %s
FROM scratch
COPY --from=build /result /
`
	releaseStages = `ARG DRIVER_TOOLKIT_IMAGE
FROM ${DRIVER_TOOLKIT_IMAGE} AS build
FROM scratch
COPY --from=build /etc/driver-toolkit-release.json /
`
	packagesStages = `
ARG DRIVER_PACKAGES
RUN mkdir -p /packages /result && cd /packages && %s
FROM scratch
COPY --from=build /result /
`
	unpackDebs = `apt-get update && apt-get download ${DRIVER_PACKAGES} && for p in *.deb; do dpkg -x "$p" /result || exit; done`
	unpackRPMs = `dnf -y install dnf-plugins-core cpio && dnf download ${DRIVER_PACKAGES} && cd /result && for p in /packages/*.rpm; do rpm2cpio "$p" | cpio -idm || exit; done`
)

// findKernels returns the kernels for which images are built: those of the settings, or the one
// of each Driver Toolkit image.
func (s *Settings) findKernels(ctx context.Context, work string) ([]string, error) {
	if len(s.Kernels) > 0 {
		return s.Kernels, nil
	}
	var kernels []string
	for i, img := range s.DriverToolkitImages {
		to := filepath.Join(work, fmt.Sprintf("release-%d", i))
		if err := s.buildImage(ctx, releaseStages, "", to, runfile.NoLinks, map[string]string{"DRIVER_TOOLKIT_IMAGE": img}); err != nil {
			return nil, err
		}
		text, err := record.Read(filepath.Join(to, "driver-toolkit-release.json"), 64<<10)
		var release struct {
			Kernel string `json:"KERNEL_VERSION"`
		}
		if err == nil {
			err = json.Unmarshal(text, &release)
		}
		if err == nil && release.Kernel == "" {
			err = errors.New("it names no KERNEL_VERSION")
		}
		if err != nil {
			return nil, fmt.Errorf("/etc/driver-toolkit-release.json of %s: %w; set KERNEL_VERSION", img, err)
		}
		if err := s.checkKernel(release.Kernel); err != nil {
			return nil, fmt.Errorf("/etc/driver-toolkit-release.json of %s: %w", img, err)
		}
		s.Log.Info("the Driver Toolkit names its kernel", "image", img, "kernel", release.Kernel)
		kernels = append(kernels, release.Kernel)
	}
	return kernels, nil
}

// compiled names the folders that a build of one kind of modules for one kernel has filled.
type compiled struct {
	source
	release string
	halves  string // folder with the content of image.Dir
	tools   string // folder for link.ToolsDir
	linked  string // folder with the modules that the tools have linked from the halves
}

// halvesDir returns the folder with the halves themselves.
func (c compiled) halvesDir() string {
	return filepath.Join(c.halves, image.HalvesName, string(c.kind))
}

// compileHalves compiles the halves of one kind of modules for the n-th kernel.
func (s *Settings) compileHalves(ctx context.Context, from source, release string, n int, work string) (compiled, error) {
	to := filepath.Join(work, fmt.Sprintf("kernel-%d-%s", n, from.kind))
	s.Log.Info("compiling", "kernel", release, "kind", from.kind, "by", s.ContainerTool)
	var err error
	if s.ContainerTool == NoTool {
		err = s.compileHere(ctx, from, release, to)
	} else {
		err = s.compileInContainer(ctx, from, release, n, work, to)
	}
	if err != nil {
		return compiled{}, fmt.Errorf("kernel %s: %w", release, err)
	}
	c := compiled{source: from, release: release, halves: filepath.Join(to, "lib/modules", release), tools: filepath.Join(to, "tools"), linked: filepath.Join(to, "linked")}
	if !fileExists(c.halvesDir()) {
		return c, fmt.Errorf("kernel %s: the sources built no %s modules (KERNEL_MODULE_TYPE)", release, from.kind)
	}
	return c, nil
}

// buildArguments returns the arguments of gpu-driver build, which fills the folder to.
func (s *Settings) buildArguments(source, release, headers, to string) []string {
	return []string{
		"build", "--halves", "--source=" + source, "--kernel=" + release, "--headers-root=" + headers, "--driver-version=" + s.DriverVersion,
		"--modules=" + strings.Join(s.Modules, ","), "--out=" + to, "--tools=" + filepath.Join(to, "tools"), "--linked=" + filepath.Join(to, "linked"),
	}
}

func (s *Settings) compileHere(ctx context.Context, from source, release, to string) error {
	headers := s.HeadersRoot
	if headers == "" {
		headers = "/"
	}
	return s.runProgram(ctx, nil, s.Program, s.buildArguments(from.dir, release, headers, to)...)
}

// buildStage returns the text of the stage "build" for the n-th kernel, and its arguments.
func (s *Settings) buildStage(release string, n int) (text string, args map[string]string, err error) {
	data, err := os.ReadFile(filepath.Join(s.Recipes, string(systems[s.OS].family)+".containerfile"))
	builder, rhelVersion := s.builderImage(n)
	return string(data), map[string]string{
		"KERNEL_VERSION": release, "HEADERS_PACKAGES": nameHeaders(systems[s.OS].family, release), "RHEL_VERSION": rhelVersion, "BUILDER_IMAGE": builder,
	}, err
}

func (s *Settings) compileInContainer(ctx context.Context, from source, release string, n int, work, to string) error {
	head, args, err := s.buildStage(release, n)
	if err != nil {
		return err
	}
	dir := filepath.Join(work, "context-"+string(from.kind))
	if n == 0 {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := folder.CopyFile(s.Program, filepath.Join(dir, "gpu-driver")); err != nil {
			return err
		}
		if err := folder.Copy(ctx, from.dir, filepath.Join(dir, "source"), false); err != nil {
			return err
		}
	}
	call, err := json.Marshal(append([]string{"/context/gpu-driver"}, s.buildArguments("/context/source", release, "/", "/result")...))
	if err != nil {
		return err
	}
	return s.buildImage(ctx, head+fmt.Sprintf(compileStages, call), dir, to, runfile.NoLinks, args)
}

// unpackPackages returns a folder into which the driver's packages were unpacked.
func (s *Settings) unpackPackages(ctx context.Context, kernels []string, work string) (string, error) {
	to := filepath.Join(work, "packages")
	if s.ContainerTool == NoTool {
		return to, s.unpackHere(ctx, work, to)
	}
	head, args, err := s.buildStage(kernels[0], 0)
	if err != nil {
		return "", err
	}
	args["DRIVER_PACKAGES"] = strings.Join(s.Packages, " ")
	unpack := unpackRPMs
	if systems[s.OS].family == apt {
		unpack = unpackDebs
	}
	return to, s.buildImage(ctx, head+fmt.Sprintf(packagesStages, unpack), "", to, runfile.AnyLinks, args)
}

// unpackHere downloads the packages with this machine's apt, and unpacks them.
func (s *Settings) unpackHere(ctx context.Context, work, to string) error {
	if systems[s.OS].family != apt {
		return fmt.Errorf("DRIVER_PACKAGES: packages of %s are not fetched with CONTAINER_TOOL=%s; set DRIVER_SOURCE", s.OS, NoTool)
	}
	dir := filepath.Join(work, "debs")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(to, 0o755)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, s.Packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download: %w: %s", err, record.Clean(string(out[max(0, len(out)-500):]), 500))
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := s.runProgram(ctx, nil, "dpkg", "-x", deb, to); err != nil {
			return err
		}
	}
	return nil
}

// buildImage builds an image of a Containerfile with the container tool, and unpacks its files to a
// new folder, which may have only the given links. It removes the image. dir is the build
// context; "" is an empty one.
func (s *Settings) buildImage(ctx context.Context, containerfile, dir, to string, links runfile.Links, args map[string]string) error {
	work, err := os.MkdirTemp(filepath.Dir(to), "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // it is removed with its parent folder
	if dir == "" {
		dir = filepath.Join(work, "empty")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	file, archive := filepath.Join(work, "Containerfile"), filepath.Join(work, "image.tar")
	if err := os.WriteFile(file, []byte(containerfile), 0o644); err != nil {
		return err
	}
	name := "localhost/gpuready-precompiled:" + filepath.Base(work)
	call := []string{"build", "--file", file, "--tag", name}
	for _, a := range sortedKeys(args) {
		if args[a] != "" {
			call = append(call, "--build-arg", a+"="+args[a])
		}
	}
	for id, secret := range map[string]string{"rhsm_org": s.RHSMOrgFile, "rhsm_activationkey": s.RHSMKeyFile} {
		if secret != "" {
			call = append(call, "--secret", "id="+id+",src="+secret)
		}
	}
	env, err := s.addPullSecret(work, &call)
	if err != nil {
		return err
	}
	if err := s.runProgram(ctx, env, s.ContainerTool, append(call, dir)...); err != nil {
		return err
	}
	defer func() {
		_ = s.runProgram(context.WithoutCancel(ctx), nil, s.ContainerTool, "rmi", name) // it is no longer needed
	}()
	save := []string{"save", "--output", archive, name}
	if s.ContainerTool == "buildah" {
		save = []string{"push", name, "docker-archive:" + archive}
	}
	if err := s.runProgram(ctx, nil, s.ContainerTool, save...); err != nil {
		return err
	}
	i, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return err
	}
	files := mutate.Extract(i)
	return errors.Join(runfile.UntarStream(ctx, files, to, links), files.Close())
}

// addPullSecret adds the pull secret to a call of the container tool.
func (s *Settings) addPullSecret(work string, call *[]string) (env []string, err error) {
	if s.PullSecretFile == "" {
		return nil, nil
	}
	if s.ContainerTool != "docker" {
		*call = append(*call, "--authfile", s.PullSecretFile)
		return nil, nil
	}
	dir := filepath.Join(work, "docker")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return []string{"DOCKER_CONFIG=" + dir}, folder.CopyFile(s.PullSecretFile, filepath.Join(dir, "config.json"))
}

// programTimeout bounds each run of a container tool or compiler. A build of NVIDIA's modules
// takes minutes, and gpu-driver itself limits it to an hour.
const programTimeout = 2 * time.Hour

// runProgram runs a program. Its output goes to standard error. The error ends with the last line
// of the output, or with the last line of gpu-driver in it, which has the reason of a failed build.
func (s *Settings) runProgram(ctx context.Context, env []string, program string, args ...string) error {
	var printed bytes.Buffer
	limited, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, program, args...)
	cmd.Env = append(os.Environ(), env...)
	out := io.MultiWriter(os.Stderr, &printed)
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case limited.Err() != nil:
		return fmt.Errorf("%s has not ended after %v", filepath.Base(program), programTimeout)
	}
	var last string
	for line := range strings.Lines(printed.String()) {
		if ours := strings.HasPrefix(last, "gpu-driver: "); strings.TrimSpace(line) != "" && (!ours || strings.HasPrefix(line, "gpu-driver: ")) {
			last = line
		}
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, record.Clean(last, 1000))
}

func sortedKeys(m map[string]string) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
