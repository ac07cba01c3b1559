package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/ldso"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// hooks returns all hooks, in the order in which a specification names them.
func hooks() []hook {
	return []hook{{
		name:  "create-symlinks",
		about: "Creates symbolic links, and replaces an existing file or link.",
		flags: []flag{{"--link", "TARGET::PATH", "a link at PATH to TARGET; may be repeated"}},
		do:    createSymlinks,
	}, {
		name:  "enable-cuda-compat",
		about: "Gives newer CUDA libraries of the image precedence over the driver's. Run it before update-ldcache.",
		flags: []flag{
			{"--host-driver-version", "VERSION", "the driver's version; without this flag and the next one the hook does nothing"},
			{"--host-cuda-version", "VERSION", "the driver's CUDA version; it is then compared with the CUDA version of the image's libcuda, instead of comparing driver versions"},
			{"--cuda-compat-container-root", "PATH", "directory of the libraries in the image; default " + compatDir},
		},
		needed: compatNeeded,
		do:     enableCompat,
	}, {
		name:  "update-ldcache",
		about: "Adds libraries to the cache of the container's dynamic loader.",
		flags: []flag{
			{"--folder", "PATH", "a directory of libraries; may be repeated"},
			{"--ldconfig-path", "PATH", "accepted and ignored: no ldconfig is run"},
		},
		do: updateLDCache,
	}, {
		name:   "disable-device-node-modification",
		about:  "Shows the container " + paramsPath + " with ModifyDeviceFiles off.",
		needed: paramsNeeded,
		do:     showParams,
	}, {
		name:  "update-application-profile",
		about: "Restricts EGL and Vulkan to the GPUs in the container's /dev, by " + profilePath + ".",
		do:    updateProfile,
	}, {
		name:  "chmod",
		about: "Sets the mode of directories and files; missing ones are skipped.",
		flags: []flag{
			{"--mode", "MODE", "octal, as 755"},
			{"--path", "PATH", "may be repeated"},
		},
		needed: chmodNeeded,
		do:     chmod,
	}, {
		name: "noop", // for trying a runtime
	}}
}

func find(name string) (hook, bool) {
	for _, h := range hooks() {
		if h.name == name {
			return h, true
		}
	}
	return hook{}, false
}

// parseLink splits "target::path".
func parseLink(s string) (target, link string, err error) {
	target, link, ok := strings.Cut(s, "::")
	if !ok || target == "" || path.Clean("/"+link) == "/" || strings.Contains(link, "::") || strings.ContainsRune(s, 0) {
		return "", "", fmt.Errorf("--link %q is not target::path", s)
	}
	return target, path.Clean("/" + link), nil
}

func createSymlinks(c container) error {
	for _, s := range c.values["--link"] {
		target, link, err := parseLink(s)
		if err != nil {
			return err
		}
		if now, err := c.Readlink(link); err == nil && now == target {
			continue
		}
		if err = c.MkdirAll(path.Dir(link), 0o755); err == nil {
			err = c.Symlink(target, link)
		}
		switch {
		case rootfs.Readonly(err):
			// update-ldcache ensures that the libraries are found under their own names,
			// or fails.
			c.warn("left out: %v", err)
		case err != nil:
			return err
		}
	}
	return nil
}

func updateLDCache(c container) error {
	warning, err := ldso.Update(c.Root, c.values["--folder"], c.Mounts)
	if warning != "" {
		c.warn("%s", warning)
	}
	return err
}

func compatNeeded(v values) (any, error) {
	h := hostCUDA{Driver: v.last("--host-driver-version"), CUDA: v.last("--host-cuda-version")}
	if h == (hostCUDA{}) {
		return nil, nil
	}
	return h, nil
}

func enableCompat(c container) error {
	dir := c.values.last("--cuda-compat-container-root")
	if dir == "" {
		dir = compatDir
	}
	dir, why, err := chooseCompat(c.Root, dir, c.found.(hostCUDA))
	if err != nil {
		return err
	}
	if why != "" {
		c.warn("%s", why)
	}
	if dir == "" || strings.Contains(dir, "\n") {
		// An image made from a container on a host with an older driver has this file.
		err = c.Remove(ldso.CompatConf)
	} else if err = c.MkdirAll(path.Dir(ldso.CompatConf), 0o755); err == nil {
		err = c.Replace(ldso.CompatConf, []byte(dir+"\n"), 0o644)
	}
	if rootfs.Readonly(err) {
		c.warn("the host's CUDA libraries are used: %v", err)
		return nil
	}
	return err
}

func paramsNeeded(values) (any, error) {
	text, err := wantedParams(paramsPath)
	if err != nil || text == nil {
		return nil, err
	}
	return text, nil
}

func showParams(c container) error {
	err := mountParams(c.Root, c.found.([]byte))
	if errors.Is(err, errKernel) || errors.Is(err, rootfs.ErrHost) {
		c.warn("%s is left as it is: %v", paramsPath, err)
		return nil
	}
	return err
}

func chmodNeeded(v values) (any, error) {
	mode, err := strconv.ParseUint(v.last("--mode"), 8, 32)
	if err != nil || mode > 0o7777 {
		return nil, fmt.Errorf("--mode %q is not an octal mode like 755", v.last("--mode"))
	}
	for _, p := range v["--path"] {
		if strings.TrimSpace(p) == "" {
			return nil, errors.New("--path is empty")
		}
	}
	if len(v["--path"]) == 0 {
		return nil, nil
	}
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m, nil
}

func chmod(c container) error {
	for _, p := range c.values["--path"] {
		err := c.Chmod(p, c.found.(fs.FileMode))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case rootfs.Readonly(err):
			c.warn("left out: %v", err)
		case err != nil:
			return err
		}
	}
	return nil
}

// runOne runs one hook of a call. It skips an unknown hook with a warning.
func runOne(name string, args []string, o *opener, stdout, stderr io.Writer) error {
	h, ok := find(name)
	if !ok {
		report(stderr, fmt.Sprintf("%q is not a hook that this version has; nothing done", name))
		return nil
	}
	values, help, err := parseFlags(args, h)
	if help {
		_, err := io.WriteString(stdout, h.usage())
		return err
	}
	if err == nil {
		err = h.run(values, o, func(format string, a ...any) { report(stderr, name+": "+fmt.Sprintf(format, a...)) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
