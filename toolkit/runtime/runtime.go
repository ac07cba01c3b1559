// Package runtime has what all container runtimes share. It describes how they are
// configured: the wanted abilities, the location of the configuration, and the files to
// write. Planning is pure: it reads files and returns others. Everything an operator wrote
// is kept byte for byte, except the keys that have to change.
//
// Query and QueryDocker query the abilities of a running runtime, and Advise returns what to
// change if they do not suffice.
package runtime

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/apply"
)

// Kind is a kind of container runtime, named after its configuration format.
type Kind string

// The supported kinds. A runtime with CDI built in, such as Podman, needs no
// configuration.
const (
	Containerd Kind = "containerd"
	Docker     Kind = "docker"
	CRIO       Kind = "crio"
)

// Place locates the configuration of a node's container runtime. Paths are the host's.
type Place struct {
	Kind    Kind
	Version string // as the runtime reports it, "1.7.24"; "" if unknown: the plan then only writes what every version understands, or is refused
	Config  string // the file that the runtime reads, "/etc/containerd/config.toml"; the template for k3s and others that generate the file from one
	// DropIn is our own file, which the runtime also reads if Config imports it:
	// "/etc/containerd/conf.d/99-gpuready.toml". "" if there is no place for one.
	DropIn string
	// Always reports whether drop-ins are read regardless of Config (k3s, CRI-O).
	Always bool
}

// Want is the set of abilities that a runtime shall have afterwards.
type Want struct {
	CDI      bool      // resolve CDI names
	CDIDirs  []string  // with CDI: directories to search besides the configured ones
	Handlers []Handler // handlers to have besides the existing ones
	Default  string    // handler of pods that name none; "" leaves it unchanged
}

// Handler is an OCI runtime under a name that pods and people can request.
type Handler struct {
	Name    string // "nvidia"
	Program string // host path, "/usr/local/nvidia/gpuready/gpu-oci-runtime"
}

// Plan lists the files that give a runtime the wanted abilities.
type Plan struct {
	// Items are all required files, including those that are already correct, so
	// that apply.Plan can detect that nothing has to change.
	Items []apply.Item
	// Edits are the keys whose effective value changes. If there are none, the
	// runtime already has the wanted abilities and must not be restarted, whatever
	// its files look like.
	Edits []Edit
}

// Edit is the change of one key, for display.
type Edit struct {
	File   string // host path of the file that is written
	Key    string // as the runtime's documentation writes it: `plugins."io.containerd.cri.v1.runtime".enable_cdi`
	Before string // effective value until now, in the file's syntax; "" if it was not set
	After  string // "" if it is no longer set
}

func (e Edit) String() string {
	if e.After == "" {
		return fmt.Sprintf("%s: %s is not set any more (until now %s)", e.File, e.Key, e.Before)
	}
	if e.Before == "" {
		return fmt.Sprintf("%s: %s = %s (not set until now)", e.File, e.Key, e.After)
	}
	return fmt.Sprintf("%s: %s = %s (until now %s)", e.File, e.Key, e.After, e.Before)
}

// Files reads the configuration for a plan; *host.Root implements it.
type Files interface {
	// ReadFile returns an error that wraps fs.ErrNotExist if there is no such file.
	ReadFile(name string, limit int64) ([]byte, error)
	// Glob returns the paths of a directory's entries that match the pattern, in
	// the order of their names. It returns none if there is no such directory.
	Glob(dir, pattern string) ([]string, error)
}

// MaxFile limits the size of a configuration file, in bytes. Real ones have a few
// kilobytes, or a few hundred for k3s with many registries.
const MaxFile = 4 << 20

// ConfigItem returns the item that writes a configuration file. An existing file keeps its
// attributes, and a symbolic link stays: its target is written.
func ConfigItem(name string, data []byte) apply.Item {
	return apply.Item{Path: name, Follow: true, File: &apply.File{Data: data}}
}

// Refusal is the reason why a configuration is not touched: it cannot be read, or
// the change would break something. Nothing is "fixed".
type Refusal struct {
	File         string
	Line, Column int    // from 1; 0 means the whole file
	Key          string // "" if it does not concern a single key
	Message      string // what is wrong, and what to do
}

func (r *Refusal) Error() string {
	at := r.File
	if r.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", r.File, r.Line, r.Column)
	}
	if r.Key != "" {
		at += ": " + r.Key
	}
	return at + ": " + r.Message
}

// DefaultCDIDirs are the directories of CDI specifications that all runtimes search unless
// they are configured otherwise (DefaultSpecDirs of
// tags.cncf.io/container-device-interface/pkg/cdi).
var DefaultCDIDirs = []string{"/etc/cdi", "/var/run/cdi"}

// MissingDirs returns the wanted directories that are not among those searched.
func MissingDirs(have, want []string) (missing []string) {
	for _, dir := range want {
		if !slices.ContainsFunc(slices.Concat(have, missing), func(d string) bool { return SameDir(d, dir) }) {
			missing = append(missing, dir)
		}
	}
	return missing
}

// SameDir reports whether two paths name the same directory, or socket. /var/run is a link to /run
// wherever systemd runs, and in the Filesystem Hierarchy Standard 3.0, 5.13.
func SameDir(a, b string) bool {
	clean := func(s string) string {
		s = path.Clean(s)
		if rest, ok := strings.CutPrefix(s, "/var/run/"); ok {
			return "/run/" + rest
		}
		return s
	}
	return clean(a) == clean(b)
}
