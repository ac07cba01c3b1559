// Package engine is how container runtimes are configured: what is wanted of one,
// where it has its configuration, and what has to be written there for it. Planning
// is pure: it reads files and returns others. What an operator wrote stays as it is,
// byte for byte, but for the keys that have to change.
package engine

import (
	"fmt"

	"github.com/gpuready/gpuready/toolkit/change"
)

// Kind is a container runtime by how it is configured.
type Kind string

// The kinds. What else speaks CDI by itself, as Podman does, needs no configuration.
const (
	Containerd Kind = "containerd"
	Docker     Kind = "docker"
	CRIO       Kind = "crio"
)

// Place is where a runtime of a node has its configuration. Paths are the host's.
type Place struct {
	Kind    Kind
	Version string // as the runtime says it, "1.7.24"; "": not known, and then what every version understands is written or it is refused
	Config  string // the file that the runtime reads, "/etc/containerd/config.toml"; for k3s and others that make theirs from a template, the template
	// DropIn is the file of ours that the runtime reads as well, if Config lets it:
	// "/etc/containerd/conf.d/99-gpuready.toml". "": there is no such place.
	DropIn string
	// Always says that drop-ins are read whatever Config says (k3s, CRI-O).
	Always bool
}

// Want is what a runtime is to be able to do afterwards.
type Want struct {
	CDI      bool      // it resolves CDI names
	CDIDirs  []string  // among others from these directories, with CDI
	Handlers []Handler // it has these, beside those that it has
	Default  string    // this is the handler of pods that name none; "": as it is
}

// Handler is an OCI runtime by a name that pods and people can ask for.
type Handler struct {
	Name    string // "nvidia"
	Program string // host path, "/usr/local/nvidia/toolkit/gpu-oci-runtime"
}

// Plan is what has to be on the host for what is wanted.
type Plan struct {
	// Items are all files that have to be there, those that are right already
	// included: that nothing has to change is then seen by change.Plan.
	Items []change.Item
	// Edits are the keys whose effective value changes; none: the runtime already
	// does what is wanted, and is not to be restarted, whatever its files look like.
	Edits []Edit
}

// Edit is one key that changes, for people.
type Edit struct {
	File   string // host path of the file that is written
	Key    string // as the runtime's documentation writes it: `plugins."io.containerd.cri.v1.runtime".enable_cdi`
	Before string // its effective value until now, in the file's syntax; "": it is not set
	After  string // "": it is not set any more
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

// Files is where a plan reads the configuration; *host.Root is one.
type Files interface {
	// ReadFile's error wraps fs.ErrNotExist where there is no such file.
	ReadFile(name string, limit int64) ([]byte, error)
	// Glob returns the paths of a directory's entries that match the pattern, in
	// the order of their names; none where there is no such directory.
	Glob(dir, pattern string) ([]string, error)
}

// Refusal is why a configuration is not touched: it cannot be read, or what is
// wanted cannot be had without breaking something. Nothing is "fixed".
type Refusal struct {
	File         string
	Line, Column int    // from 1; 0: the whole file
	Key          string // "": not a matter of one key
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
