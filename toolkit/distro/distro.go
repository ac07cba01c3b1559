// Package distro knows how Kubernetes distributions arrange a container runtime:
// where its configuration is and who writes it, where it listens, what of the host
// cannot be written, and through which door it is restarted. The profiles are data,
// profiles.yaml; a node's is detected, and each part of it can be said otherwise.
package distro

import "github.com/gpuready/gpuready/toolkit/engine"

// Profile is one arrangement. Paths are the host's.
type Profile struct {
	Name    string      `json:"name"` // "k3s"
	Engine  engine.Kind `json:"engine"`
	Detect  Detect      `json:"detect"`
	Sockets []string    `json:"sockets"` // of the runtime's CRI, in the order they are tried
	Config  string      `json:"config"`
	DropIn  string      `json:"dropIn,omitempty"`
	// Always says that drop-ins are read whatever the configuration says.
	Always  bool    `json:"always,omitempty"`
	Owner   string  `json:"owner,omitempty"` // who writes Config, if not people: "k3s writes it anew at each start"
	Restart Restart `json:"restart"`
	// InstallDir is where programs can be installed, if not where they usually are.
	InstallDir string   `json:"installDir,omitempty"`
	ReadOnly   []string `json:"readOnly,omitempty"` // directories that cannot be written
	Notes      string   `json:"notes,omitempty"`    // for people: what is special, one sentence
}

// Detect says how to know the distribution: all that is given has to hold.
type Detect struct {
	OSRelease map[string]string `json:"osRelease,omitempty"` // values of keys of /etc/os-release
	Paths     []string          `json:"paths,omitempty"`     // one of them is there
	Socket    string            `json:"socket,omitempty"`    // the runtime's
}

// Door is how a runtime takes a new configuration.
type Door string

// The doors.
const (
	Systemd Door = "systemd" // a unit is restarted over D-Bus
	Reload  Door = "reload"  // the daemon is told by SIGHUP; only Docker takes handlers so
	Nobody  Door = "none"    // nobody may: the message says what a person has to do
)

// Restart is the way through the door.
type Restart struct {
	Door    Door     `json:"door"`
	Units   []string `json:"units,omitempty"`   // the first that is active: "k3s.service", "k3s-agent.service"
	Message string   `json:"message,omitempty"` // with Nobody
}
