package distro

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Settings override the detected properties of the runtime. The environment variables
// have the names that the reference installer uses. All paths are the host's. An
// empty string means not set.
type Settings struct {
	Runtime string // RUNTIME: containerd, docker or crio

	Config           string // RUNTIME_CONFIG
	ContainerdConfig string // CONTAINERD_CONFIG
	DockerConfig     string // DOCKER_CONFIG
	CRIOConfig       string // CRIO_CONFIG

	Socket           string // RUNTIME_SOCKET
	ContainerdSocket string // CONTAINERD_SOCKET
	DockerSocket     string // DOCKER_SOCKET
	CRIOSocket       string // CRIO_SOCKET

	DropIn      string // RUNTIME_DROP_IN_CONFIG
	RestartMode string // RUNTIME_RESTART_MODE: systemd, signal or none
}

// setting is the name and value of one setting.
type setting struct{ name, value string }

// forKind returns the settings that only apply to one kind of runtime.
func (s Settings) forKind(kind runtime.Kind) (config, socket setting) {
	switch kind {
	case runtime.Containerd:
		return setting{"CONTAINERD_CONFIG", s.ContainerdConfig}, setting{"CONTAINERD_SOCKET", s.ContainerdSocket}
	case runtime.Docker:
		return setting{"DOCKER_CONFIG", s.DockerConfig}, setting{"DOCKER_SOCKET", s.DockerSocket}
	}
	return setting{"CRIO_CONFIG", s.CRIOConfig}, setting{"CRIO_SOCKET", s.CRIOSocket}
}

// Kind returns the selected runtime and the setting that selects it: RUNTIME, or the settings of
// one runtime. Both are "" if nothing is set, or if settings of several runtimes are, as in a
// policy for different nodes; then the detected one counts.
func (s Settings) Kind() (kind runtime.Kind, by string, err error) {
	if s.Runtime != "" {
		kind, by = runtime.Kind(s.Runtime), "RUNTIME="+s.Runtime
		if !slices.Contains(allKinds, kind) {
			return "", "", fmt.Errorf("RUNTIME=%q is unknown; use containerd, docker or crio", s.Runtime)
		}
		return kind, by, nil
	}
	for _, k := range allKinds {
		config, socket := s.forKind(k)
		for _, one := range []setting{config, socket} {
			switch {
			case one.value == "" || k == kind:
			case kind == "":
				kind, by = k, one.name
			default:
				return "", "", nil
			}
		}
	}
	return kind, by, nil
}

var allKinds = []runtime.Kind{runtime.Containerd, runtime.Docker, runtime.CRIO}

// Unused returns the settings of other runtimes than the one that RUNTIME selects.
func (s Settings) Unused() (names []string) {
	for _, k := range allKinds {
		config, socket := s.forKind(k)
		for _, one := range []setting{config, socket} {
			if s.Runtime != "" && one.value != "" && k != runtime.Kind(s.Runtime) {
				names = append(names, one.name+"="+one.value)
			}
		}
	}
	return names
}

// Empty reports whether no setting is set.
func (s Settings) Empty() bool { return s == Settings{} }

// Override returns the profile with the settings in place of the detected properties. A
// setting for one kind of runtime takes precedence over the general one.
func Override(p Profile, s Settings) (Profile, error) {
	kind, by, err := s.Kind()
	if err != nil {
		return Profile{}, err
	}
	if err := s.check(); err != nil {
		return Profile{}, err
	}
	if kind != "" && kind != p.Engine {
		p = plain(kind, p, by)
	}
	if p.Engine == "" {
		return Profile{}, errors.New("no container runtime is detected; name it with RUNTIME (containerd, docker, crio)")
	}
	config, socket := s.forKind(p.Engine)
	p.setSocket(cmp.Or(socket.value, s.Socket))
	p.setConfig(cmp.Or(config.value, s.Config))
	p.setDropIn(s.DropIn)
	return p, p.setRestart(s.RestartMode)
}

// check returns an error for each path that is not absolute and clean.
func (s Settings) check() error {
	var wrong []error
	for _, one := range []setting{
		{"RUNTIME_CONFIG", s.Config}, {"CONTAINERD_CONFIG", s.ContainerdConfig}, {"DOCKER_CONFIG", s.DockerConfig}, {"CRIO_CONFIG", s.CRIOConfig},
		{"RUNTIME_SOCKET", s.Socket}, {"CONTAINERD_SOCKET", s.ContainerdSocket}, {"DOCKER_SOCKET", s.DockerSocket}, {"CRIO_SOCKET", s.CRIOSocket},
		{"RUNTIME_DROP_IN_CONFIG", s.DropIn},
	} {
		if one.value == "" {
			continue
		}
		if err := absolute(one.value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", one.name, err))
		}
	}
	return errors.Join(wrong...)
}

// plain returns the profile of a stand-alone runtime on the same operating system.
func plain(kind runtime.Kind, was Profile, by string) Profile {
	for _, p := range profiles() {
		if p.Name == string(kind) {
			p.InstallDir, p.ReadOnly = was.InstallDir, was.ReadOnly
			p.Reason = fmt.Sprintf("%s is set", by)
			if was.Name != "" {
				p.Reason += ", where " + was.Title + " was detected"
			}
			return p
		}
	}
	return was
}

func (p *Profile) setSocket(at string) {
	switch {
	case at == "":
	case p.Engine == runtime.Docker:
		p.API = at
	default:
		p.Sockets = []string{at}
	}
}

func (p *Profile) setConfig(name string) {
	if name == "" || name == p.Config || slices.Contains(p.Generated, name) {
		return // a file generated from the configuration has the same content, and is not written
	}
	p.Config, p.Generated, p.Managed, p.Owner = name, nil, "", ""
	if p.Engine != runtime.CRIO { // which reads its directory besides any file
		p.Always = false
	}
	p.Reason = strings.TrimPrefix(p.Reason+"; the configuration is set to "+name, "; ")
}

func (p *Profile) setDropIn(name string) {
	if name == "" || name == p.DropIn {
		return
	}
	beside := path.Dir(name) == path.Dir(p.DropIn) && path.Ext(name) == path.Ext(p.DropIn)
	p.DropIn, p.Containerd1, p.Always = name, "", p.Always && (beside || p.Engine == runtime.CRIO && path.Dir(name) == path.Dir(p.DropIn))
	p.Reason = strings.TrimPrefix(p.Reason+"; the drop-in is set to "+name, "; ")
}

func (p *Profile) setRestart(mode string) error {
	const variable = "RUNTIME_RESTART_MODE="
	switch {
	case mode == "":
	case mode == "none":
		what := strings.Join(p.Restart.Units, " or ")
		message := "nothing is restarted, since " + variable + "none is set; restart " + what + " for the change to take effect"
		if p.Restart.Method == Manual {
			message = p.Restart.Message
		}
		p.Restart = Restart{Method: Manual, Message: message, Automatic: p.Restart.Automatic}
	case mode != "systemd" && mode != "signal":
		return fmt.Errorf("%s%q is unknown; use systemd, signal or none", variable, mode)
	case mode == "signal" && p.Engine != runtime.Docker:
		// containerd exits on SIGHUP, and CRI-O loads no handlers on it: a restart has the
		// effect that is wanted.
	case p.Restart.Method == Manual:
		return fmt.Errorf("%s%s is not possible on %s: %s", variable, mode, p.Title, p.Restart.Message)
	case mode == "systemd":
		p.Restart.Method = Systemd
	default:
		p.Restart.Method = Reload
	}
	return nil
}
