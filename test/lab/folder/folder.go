// Package folder keeps what a cluster has on this machine beside its processes: a folder on disk, and
// raised limits of the kernel.
//
// It has a minimal client of the API server instead of Kubernetes' own, since it is part of a program
// that runs as a hook in each container.
//
// Each cluster has one folder, with its programs, logs, certificates and the disks of its nodes. The
// process that holds the cluster locks it, and the lock ends with that process. So a folder without a
// lock belongs to a killed cluster. The folder's Record is for other processes: with it they find the
// cluster, query its nodes, read its logs and end it.
//
// A cluster has one Authority, which signs all certificates. Keys are P-256 and new for each cluster.
// Certificates are valid for 30 days, after which the cluster has to be created again.
//
// RaiseLimits raises limits while clusters are up. The kernel counts them for each user and sizes
// them for one system, so several nodes of the same user soon reach them. Raised limits cost nothing;
// the last cluster restores them.
package folder

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/test/lab/namespace"
)

// Folder is the folder of one cluster.
type Folder struct {
	Cluster string // its name
	Path    string // absolute

	lock *os.File
}

// Base returns the parent folder of all clusters: GPUREADY_CLUSTERS, or
// /var/lib/gpuready-clusters. It holds the nodes' disks, so its file system must support
// overlays.
func Base() string {
	if base := os.Getenv("GPUREADY_CLUSTERS"); base != "" {
		return base
	}
	return "/var/lib/gpuready-clusters"
}

// PathOf returns the path of a cluster's folder, which may not exist.
func PathOf(cluster string) string { return filepath.Join(Base(), cluster) }

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName returns an error for a name that no cluster can have.
func CheckName(cluster string) error {
	if !validName.MatchString(cluster) {
		return fmt.Errorf("cluster name %q: must be lower-case letters, digits and dashes, at most 32", cluster)
	}
	return nil
}

var validNode = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckNodeName returns an error for a name that no node can have.
func CheckNodeName(node string) error {
	if !validNode.MatchString(node) {
		return fmt.Errorf("node name %q: must be lower-case letters, digits and dashes, at most 63", node)
	}
	return nil
}

// Claim creates the folder of a cluster and locks it until Release or the end of this process.
// It first removes what killed clusters left behind, including their control groups.
func Claim(cluster string, hierarchies []namespace.Hierarchy) (*Folder, error) {
	// One at a time, so that no process mistakes a folder that is being created for an abandoned
	// one.
	base, err := lockBase()
	if err != nil {
		return nil, fmt.Errorf("folder of the clusters: %w; choose another with GPUREADY_CLUSTERS", err)
	}
	defer base.Close()
	sweep(base.Name(), hierarchies)
	f := &Folder{Cluster: cluster, Path: filepath.Join(base.Name(), cluster)}
	for _, d := range []string{logs, keys, nodes} {
		if err := os.MkdirAll(filepath.Join(f.Path, d), 0o700); err != nil {
			return nil, fmt.Errorf("folder of the cluster: %w", err)
		}
	}
	lock, held, err := tryLock(f.Path, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if held {
		return nil, fmt.Errorf("a cluster named %s is up; end it with `cluster down --name %s`, or choose another --name", cluster, cluster)
	}
	f.lock = lock
	return f, nil
}

// Release removes the folder and the lock with it.
func (f *Folder) Release() error {
	defer f.lock.Close()
	if err := os.RemoveAll(f.Path); err != nil {
		return fmt.Errorf("remove the cluster's folder: %w", err)
	}
	_ = os.Remove(filepath.Dir(f.Path)) // if this was the last cluster
	return nil
}

// Entries of a folder.
const (
	logs  = "log"
	keys  = "pki"
	nodes = "nodes"
)

// Join returns the path of a file without a method of its own here.
func (f *Folder) Join(name string) string { return filepath.Join(f.Path, name) }

// Key returns the path of a certificate, a key, or a file that holds one.
func (f *Folder) Key(name string) string { return filepath.Join(f.Path, keys, name) }

// Log returns the path of a program's output.
func (f *Folder) Log(program string) string { return filepath.Join(f.Path, logs, program+".log") }

// MachineFiles returns the files of a machine.
func (f *Folder) MachineFiles(hostname string) namespace.Files {
	return namespace.Files{Tool: f.Tool(), Spec: f.Join(hostname + ".json"), Log: f.Log(hostname)}
}

// Logs lists the paths of all logs.
func Logs(path string) ([]string, error) { return filepath.Glob(filepath.Join(path, logs, "*.log")) }

// Disk returns the path of a node's disk.
func (f *Folder) Disk(node string) string { return filepath.Join(f.Path, nodes, node) }

// Group returns the name of a node's control groups. After a cluster was killed, the next Claim
// removes those of each node that has a disk.
func (f *Folder) Group(node string) string { return groupName(f.Cluster, node) }

func groupName(cluster, node string) string { return "gpuready-" + cluster + "-" + node }

// PreservedLogs returns the folder with the logs of a cluster that failed to start.
func PreservedLogs(cluster string) string {
	return filepath.Join(os.TempDir(), "gpuready-cluster-"+cluster+"-log")
}

// PreserveLogs moves the logs of a cluster that failed to start to another place, and makes the
// error name them there. They are kept until the next failure of a cluster of that name.
func (f *Folder) PreserveLogs(err error) error {
	from, to := filepath.Join(f.Path, logs), PreservedLogs(f.Cluster)
	if os.RemoveAll(to) != nil || os.Rename(from, to) != nil && os.CopyFS(to, os.DirFS(from)) != nil {
		return err
	}
	return &failure{err: err, from: from, to: to}
}

// failure is an error whose file names point to the moved folder.
type failure struct {
	err      error
	from, to string
}

func (f *failure) Error() string { return strings.ReplaceAll(f.err.Error(), f.from, f.to) }
func (f *failure) Unwrap() error { return f.err }

// sweep removes what killed clusters left behind.
func sweep(base string, hierarchies []namespace.Hierarchy) {
	dirs, _ := filepath.Glob(filepath.Join(base, "*"))
	for _, dir := range dirs {
		lock, held, err := tryLock(dir, os.O_CREATE)
		if err != nil || held {
			continue
		}
		disks, _ := os.ReadDir(filepath.Join(dir, nodes))
		for _, d := range disks {
			// If it cannot be removed now, the folder stays and its name remains in use.
			if err = namespace.RemoveGroups(hierarchies, groupName(filepath.Base(dir), d.Name())); err != nil {
				break
			}
		}
		if err == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}
