package main

// This file finds the low-level OCI runtime: runc, crun or youki.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// runtimeDirs are the directories to search after PATH, since the environment may be minimal. The
// last ones are those of k3s, RKE2 and k0s.
var runtimeDirs = []string{
	"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
	"/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/rke2/bin", "/var/lib/k0s/bin",
}

// findRuntime returns the path of the first of the runtimes that exists. Each is an absolute path,
// or a name that is looked up in pathList, in the form of PATH, and in dirs. Find never
// returns the program self, under any name.
func findRuntime(runtimes []string, pathList string, dirs []string, self os.FileInfo) (string, error) {
	search := append(filepath.SplitList(pathList), dirs...)
	for _, r := range runtimes {
		candidates := []string{r}
		if !filepath.IsAbs(r) {
			candidates = candidates[:0]
			for _, dir := range search {
				if filepath.IsAbs(dir) { // never run a program of the working directory
					candidates = append(candidates, filepath.Join(dir, r))
				}
			}
		}
		for _, c := range candidates {
			info, err := os.Stat(c)
			if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && (self == nil || !os.SameFile(info, self)) {
				return c, nil
			}
		}
	}
	return "", fmt.Errorf("there is no low-level runtime: none of %s, in PATH or %s; install one or name it in \"runtimes\" of gpu-oci-runtime.json",
		strings.Join(runtimes, ", "), strings.Join(dirs, ", "))
}
