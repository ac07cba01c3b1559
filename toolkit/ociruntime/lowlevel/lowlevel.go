// Package lowlevel finds the OCI runtime that does the work.
package lowlevel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dirs are where runtimes are, where PATH has none: what starts us may have a bare
// environment. The last are k3s's, RKE2's and k0s's own.
var Dirs = []string{
	"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
	"/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/rke2/bin", "/var/lib/k0s/bin",
}

// Find returns the path of the first of the runtimes that there is: absolute paths,
// or names that are looked up in pathList, as PATH is written, and in dirs. It never
// returns the program self, by whichever name.
func Find(runtimes []string, pathList string, dirs []string, self os.FileInfo) (string, error) {
	search := append(filepath.SplitList(pathList), dirs...)
	for _, r := range runtimes {
		candidates := []string{r}
		if !filepath.IsAbs(r) {
			candidates = candidates[:0]
			for _, dir := range search {
				if filepath.IsAbs(dir) { // what is in the working directory is not for us to run
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
