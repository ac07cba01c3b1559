package build

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Headers holds the folders with a kernel's headers. Debian and SUSE have two of them, RHEL
// and Ubuntu one.
type Headers struct {
	Source string // the kernel's Makefile and scripts
	Output string // .config, Module.symvers, include/generated; "": Source
}

// The files that each configuration of a kernel has.
const (
	configFile  = ".config"
	symbolsFile = "Module.symvers"
	releaseFile = "include/generated/utsrelease.h"
)

// FindHeaders returns the headers of a kernel that are installed below root by kernel-devel or
// linux-headers, or as /lib/modules/<release>/build. If there are none, the error wraps
// fs.ErrNotExist.
func FindHeaders(root, release string) (Headers, error) {
	for _, dir := range []string{"usr/src/kernels/" + release, "usr/src/linux-headers-" + release, "lib/modules/" + release + "/build"} {
		dir, err := filepath.EvalSymlinks(filepath.Join(root, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Headers{}, err
		}
		source, err := findSource(root, dir)
		return Headers{source, dir}, err
	}
	return Headers{}, fmt.Errorf("no headers of kernel %s below %s: %w; install kernel-devel-%s or linux-headers-%s", release, root, fs.ErrNotExist, release, release)
}

// findSource returns the folder with the kernel's Makefile. If that is not dir, the Makefile in
// dir consists of a line that includes it.
func findSource(root, dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, "Makefile"))
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	lines := bufio.NewScanner(f)
	for n := 0; lines.Scan() && n < 20; n++ {
		file, ok := strings.CutPrefix(lines.Text(), "include ")
		if file = strings.TrimSpace(file); !ok || strings.ContainsRune(file, '$') || filepath.Base(file) != "Makefile" {
			continue
		}
		if filepath.IsAbs(file) {
			return filepath.Join(root, filepath.Dir(file)), nil
		}
		return filepath.Join(dir, filepath.Dir(file)), nil
	}
	return dir, nil
}

// checkComplete rejects headers that are incomplete or of another kernel.
func (h Headers) checkComplete(release string) error {
	for _, name := range []string{configFile, symbolsFile, "include/generated/autoconf.h"} {
		if _, err := os.Stat(filepath.Join(h.Output, name)); err != nil {
			return fmt.Errorf("headers of kernel %s: %w; %s", release, err, output.HintHeaders)
		}
	}
	text, err := os.ReadFile(filepath.Join(h.Output, releaseFile))
	if err != nil {
		return fmt.Errorf("headers of kernel %s: %w; %s", release, err, output.HintHeaders)
	}
	// #define UTS_RELEASE "6.1.0-50-amd64"
	_, rest, _ := strings.Cut(string(text), `UTS_RELEASE "`)
	if is, _, _ := strings.Cut(rest, `"`); is != release {
		return fmt.Errorf("the headers in %s are of kernel %s, not of %s; install kernel-devel-%s or linux-headers-%s",
			h.Output, record.Clean(is, 100), release, release, release)
	}
	return nil
}

// compiler is the C compiler of a build.
type compiler struct {
	program string // "gcc-12"
	version string // the first line of --version
	llvm    bool   // the kernel was built with LLVM's tools
}

// findCompiler returns the compiler that built the kernel, by the kernel's configuration, or
// else the machine's own compiler of that family.
func findCompiler(ctx context.Context, h Headers) (compiler, error) {
	config, err := os.ReadFile(filepath.Join(h.Output, configFile))
	if err != nil {
		return compiler{}, err
	}
	named := configValue(string(config), "CONFIG_CC_VERSION_TEXT")
	c := compiler{llvm: configValue(string(config), "CONFIG_CC_IS_CLANG") == "y"}
	candidates := []string{"gcc", "cc"}
	if c.llvm {
		candidates = []string{"clang"}
	}
	if first, _, _ := strings.Cut(named, " "); first != "" {
		candidates = append([]string{first}, candidates...)
	}
	for _, name := range candidates {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, name, "--version")
		cmd.Env = output.Environment("/")
		out, err := cmd.Output()
		if err != nil {
			return compiler{}, fmt.Errorf("%s --version: %w", name, err)
		}
		c.program = name
		c.version, _, _ = strings.Cut(string(out), "\n")
		return c, nil
	}
	return compiler{}, fmt.Errorf("there is no compiler; the kernel was built with %q: build in an image that has it", record.Clean(named, 100))
}

// configValue returns the value of an option in a kernel's configuration, without quotes; ""
// if it is not set.
func configValue(config, option string) string {
	for line := range strings.Lines(config) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), option+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}
