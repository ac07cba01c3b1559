package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/hook/bundle"
	"github.com/gpuready/gpuready/toolkit/hook/ldso"
)

// parseFlags collects the values of the one flag that a hook has. The
// reference's --ldconfig-path is taken and not needed: no ldconfig is run.
func parseFlags(args []string, name string) ([]string, error) {
	var values []string
	for len(args) > 0 {
		flag, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		if flag != name && flag != "--ldconfig-path" {
			return nil, fmt.Errorf("unknown flag %q; it takes %s", flag, name)
		}
		if !inline {
			if len(args) == 0 {
				return nil, fmt.Errorf("flag %s wants a value", flag)
			}
			value, args = args[0], args[1:]
		}
		if flag == name {
			values = append(values, value)
		}
	}
	return values, nil
}

// parseLink splits "target::path".
func parseLink(s string) (target, link string, err error) {
	target, link, ok := strings.Cut(s, "::")
	if !ok || target == "" || path.Clean("/"+link) == "/" || strings.Contains(link, "::") || strings.ContainsRune(s, 0) {
		return "", "", fmt.Errorf("--link %q is not target::path", s)
	}
	return target, path.Clean("/" + link), nil
}

func createSymlinks(root *host.Root, links []string, _ bundle.Bundle, stderr io.Writer) error {
	for _, s := range links {
		target, link, err := parseLink(s)
		if err != nil {
			return err
		}
		if now, err := root.Readlink(link); err == nil && now == target {
			continue
		}
		_, err = root.MkdirAll(path.Dir(link), 0o755)
		if err == nil {
			_, err = root.Symlink(target, link)
		}
		switch {
		case errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission):
			// The libraries are still found under their own names: update-ldcache
			// sees to that, or fails.
			fmt.Fprintf(stderr, "gpu-cdi-hook: create-symlinks: left out: %v\n", err)
		case err != nil:
			return err
		}
	}
	return nil
}

func updateLDCache(root *host.Root, folders []string, b bundle.Bundle, stderr io.Writer) error {
	warning, err := ldso.Update(root, folders, b.Mounts)
	if warning != "" {
		fmt.Fprintf(stderr, "gpu-cdi-hook: update-ldcache: %s\n", strings.ReplaceAll(warning, "\n", "; "))
	}
	return err
}
