// Package distro describes how Kubernetes distributions set up a container runtime:
// where its configuration is and who writes it, where it listens, which parts of the
// host are read-only, and how it is restarted. The profiles are data in profiles.yaml.
// A node's profile is detected, and each part of it can be overridden.
package distro

import (
	_ "embed"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Profile describes a container runtime as set up by one distribution. Paths are the host's.
type Profile struct {
	Name    string       `json:"name"`  // "k3s"
	Title   string       `json:"title"` // for people: "k3s"
	Engine  runtime.Kind `json:"engine"`
	Sources []string     `json:"sources"` // pages and files of the distribution that document the profile
	Detect  Detection    `json:"detect"`
	Sockets []string     `json:"sockets"`       // of the runtime's CRI, in the order they are tried
	API     string       `json:"api,omitempty"` // the socket of Docker's own API, which Docker has before any CRI
	// Config is the file that the runtime reads, or the template that it is generated
	// from if people edit that.
	Config string `json:"config"`
	DropIn string `json:"dropIn,omitempty"`
	// Always reports whether drop-ins are read regardless of the configuration.
	Always bool `json:"always,omitempty"`
	// Containerd1 is the drop-in for a containerd before 2.0, if it differs.
	Containerd1 string `json:"containerd1,omitempty"`
	// Generated are files that are generated from Config, or for it. They are never written.
	Generated []string `json:"made,omitempty"`
	// Managed is the first line of Config as long as Owner writes it, if it has one.
	Managed    string  `json:"managed,omitempty"`
	Owner      string  `json:"owner,omitempty"` // the program that writes Config, if any: "k3s writes it anew at each start"
	Restart    Restart `json:"restart"`
	InstallDir string  `json:"installDir,omitempty"` // the directory for programs, if not the usual one
	// ReadOnly are the directories that cannot be written.
	ReadOnly []string `json:"readOnly,omitempty"`
	Notes    string   `json:"notes,omitempty"` // for people: what is special, one sentence
	Undo     string   `json:"undo,omitempty"`  // for people: what is left to do after the original bytes are restored

	Reason string `json:"-"` // why a node has this profile; set by Detect and Override
}

// Detection are the signs of a distribution. All that are given have to match.
type Detection struct {
	OSRelease map[string]string `json:"osRelease,omitempty"` // values of keys of /etc/os-release; "*" is any
	Paths     []string          `json:"paths,omitempty"`     // one of them exists
	Socket    string            `json:"socket,omitempty"`    // the runtime's
	Config    string            `json:"config,omitempty"`    // the configuration that the runtime's unit names
}

// RestartMethod is the way in which a runtime loads a new configuration.
type RestartMethod string

// The restart methods.
const (
	Systemd RestartMethod = "systemd" // a unit is restarted over D-Bus
	Reload  RestartMethod = "reload"  // the daemon reloads on SIGHUP; only Docker loads handlers this way
	Manual  RestartMethod = "none"    // restarting is not allowed: the message names the manual steps
)

// Restart describes how the runtime is restarted.
type Restart struct {
	Method RestartMethod `json:"door"`
	Units  []string      `json:"units,omitempty"` // the first active one is restarted: "k3s.service", "k3s-agent.service"
	// Automatic reports whether a watcher of the drop-ins restarts the runtime some
	// seconds after one changes (k0s). Restarting a unit too does no harm.
	Automatic bool   `json:"itself,omitempty"`
	Message   string `json:"message,omitempty"` // with Manual
}

//go:embed profiles.yaml
var data []byte

// profiles decodes the embedded profiles once. A test checks that they are valid.
var profiles = sync.OnceValue(func() []Profile {
	all, err := decode(data)
	if err != nil {
		return nil
	}
	return all
})

func decode(data []byte) ([]Profile, error) {
	var file struct {
		Profiles []Profile `json:"profiles"`
	}
	if err := config.Strict(data, &file, "profiles.yaml"); err != nil {
		return nil, err
	}
	for _, p := range file.Profiles {
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("profiles.yaml: %s: %w", p.Name, err)
		}
	}
	return file.Profiles, nil
}

// check returns an error if the profile is invalid.
func (p Profile) check() error {
	paths := map[string]string{"config": p.Config}
	for field, list := range map[string][]string{
		"detect.paths": p.Detect.Paths, "sockets": p.Sockets, "readOnly": p.ReadOnly, "made": p.Generated,
		"detect.socket": {p.Detect.Socket}, "detect.config": {p.Detect.Config}, "api": {p.API},
		"dropIn": {p.DropIn}, "containerd1": {p.Containerd1}, "installDir": {p.InstallDir},
	} {
		for i, one := range list {
			if one != "" || len(list) > 1 {
				paths[fmt.Sprintf("%s[%d]", field, i)] = one
			}
		}
	}
	for field, name := range paths {
		if err := absolute(name); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	switch p.Engine {
	case runtime.Containerd, runtime.Docker, runtime.CRIO:
	default:
		return fmt.Errorf("engine: %q is none", p.Engine)
	}
	switch {
	case p.Name == "" || p.Title == "" || len(p.Sources) == 0:
		return fmt.Errorf("name, title and sources are required")
	case p.Restart.Method == Manual && p.Restart.Message == "":
		return fmt.Errorf("restart.message: required with door none, to name the manual steps")
	case p.Restart.Method != Manual && len(p.Restart.Units) == 0:
		return fmt.Errorf("restart.units: none")
	case p.Restart.Method != Manual && p.Restart.Method != Systemd && p.Restart.Method != Reload:
		return fmt.Errorf("restart.door: %q is none", p.Restart.Method)
	}
	return nil
}

func absolute(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%q is not a clean absolute path of the host", name)
	}
	return nil
}

// Place returns the place of the configuration of a runtime that reports the version.
func (p Profile) Place(version string) runtime.Place {
	dropIn := p.DropIn
	if p.Containerd1 != "" && strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
		dropIn = p.Containerd1
	}
	return runtime.Place{Kind: p.Engine, Version: version, Config: p.Config, DropIn: dropIn, Always: p.Always}
}

// Writable reports whether a path of the host can be written and persists, as far as
// the profile knows. Links are followed: /usr/local is often one.
func (p Profile) Writable(root *host.Root, name string) bool {
	real, err := root.Resolve(name)
	if err != nil {
		return false
	}
	for _, dir := range p.ReadOnly {
		if below(real, dir) {
			return false
		}
	}
	return true
}

func below(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// Obstacle returns the reason why changing the runtime's configuration has no effect,
// and a remedy. It returns "" if there is no obstacle.
func (p Profile) Obstacle(root *host.Root) string {
	switch {
	case p.DropIn != "" && p.Always && p.Writable(root, p.DropIn):
		return ""
	case p.Owner == "" && p.Writable(root, p.Config):
		return ""
	case p.Restart.Message != "":
		return p.Restart.Message
	case p.Owner != "":
		return fmt.Sprintf("%s (%s) imports no drop-ins; upgrade %s to a release that does, or configure the handler by its own means", p.Config, p.Owner, p.Title)
	}
	return fmt.Sprintf("%s cannot be written on %s; make the runtime read another file, and name it with RUNTIME_CONFIG", p.Config, p.Title)
}
