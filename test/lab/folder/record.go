package folder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Record describes a cluster for other processes. It is a file in the cluster's folder.
type Record struct {
	Name       string       `json:"name"`
	Process    int          `json:"process"` // that holds it; 0: still starting
	Since      time.Time    `json:"since"`
	Kubeconfig string       `json:"kubeconfig"`
	Server     string       `json:"server"`
	Dir        string       `json:"dir"`
	Nodes      []NodeRecord `json:"nodes"`
}

// NodeRecord describes a node. The fields after IP are set by Refresh.
type NodeRecord struct {
	Name    string `json:"name"`
	IP      string `json:"ip"`
	Ready   bool   `json:"ready"`
	Ended   bool   `json:"ended,omitempty"`   // its first process ended by itself
	Message string `json:"message,omitempty"` // why it is not ready
	Kubelet string `json:"kubelet,omitempty"`
	Runtime string `json:"runtime,omitempty"`
}

const recordFile = "cluster.json"

// Write writes the record into the cluster's folder, Dir.
func (r Record) Write() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Dir, recordFile), data, 0o600)
}

// ErrNotUp means that no cluster of that name is up.
var ErrNotUp = errors.New("no such cluster is up")

// FindRecord reads the record of a cluster that a process holds. While the cluster starts, only Name
// and Dir are set.
func FindRecord(name string) (Record, error) {
	r := Record{Name: name, Dir: PathOf(name)}
	if CheckName(name) != nil {
		return r, fmt.Errorf("cluster name %q: %w", name, ErrNotUp)
	}
	if _, err := os.Stat(r.Dir); err != nil {
		return r, fmt.Errorf("%s: %w; bring it up with `cluster up --name %s`", name, ErrNotUp, name)
	}
	held, err := Locked(r.Dir)
	if err != nil {
		return r, err
	}
	if !held {
		return r, fmt.Errorf("%s: %w; it was killed, and its files in %s go when the next one comes up", name, ErrNotUp, r.Dir)
	}
	data, err := os.ReadFile(filepath.Join(r.Dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// ListNames lists the clusters that are up.
func ListNames() []string {
	var names []string
	dirs, _ := os.ReadDir(Base())
	for _, d := range dirs {
		if _, err := FindRecord(d.Name()); err == nil {
			names = append(names, d.Name())
		}
	}
	return names
}

// Refresh reads the state of the nodes from the cluster's API server.
func (r *Record) Refresh(ctx context.Context) error {
	client, err := openClient(r.Kubeconfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("ask the API server of %s: %w; see `cluster logs kube-apiserver --name %s`", r.Name, err, r.Name)
	}
	for i := range r.Nodes {
		for _, n := range nodes {
			if to := &r.Nodes[i]; n.Metadata.Name == to.Name {
				to.Ready, to.Message = n.Ready()
				to.Kubelet, to.Runtime = n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.ContainerRuntimeVersion
				if to.Ready {
					to.Message = ""
				}
			}
		}
	}
	return r.findEnded(ctx)
}

// findEnded asks the holder which nodes have ended. Kubernetes notices that only after a while.
func (r *Record) findEnded(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(r.Dir, controlSocket)); errors.Is(err, fs.ErrNotExist) {
		return nil // this holder takes no commands
	}
	a, err := r.command(ctx, http.MethodGet, "/ended", 0)
	for i := range r.Nodes {
		if n := &r.Nodes[i]; slices.Contains(a.Ended, n.Name) {
			n.Ready, n.Ended, n.Message = false, true, ""
		}
	}
	return err
}

// End asks the process that holds the cluster to end it, and waits until it is gone.
func (r *Record) End() error {
	if r.Process == 0 {
		return fmt.Errorf("%s still comes up; end the process that brings it up", r.Name)
	}
	if err := unix.Kill(r.Process, unix.SIGTERM); err != nil {
		return fmt.Errorf("end process %d, which holds the cluster %s: %w", r.Process, r.Name, err)
	}
	return WaitReleased(r.Dir, time.Minute)
}

// Logs returns the log files of the cluster's programs by their names: "kube-apiserver",
// "n1-kubelet".
func (r *Record) Logs() (map[string]string, error) {
	files, err := Logs(r.Dir)
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	for _, file := range files {
		logs[strings.TrimSuffix(filepath.Base(file), ".log")] = file
	}
	return logs, nil
}

// Log returns one of these files.
func (r *Record) Log(name string) (string, error) {
	logs, err := r.Logs()
	if err != nil {
		return "", err
	}
	// People also try n1/kubelet.
	if file, ok := logs[strings.ReplaceAll(name, "/", "-")]; ok {
		return file, nil
	}
	return "", fmt.Errorf("%s has no log %q; there are %s", r.Name, name, strings.Join(slices.Sorted(maps.Keys(logs)), ", "))
}
