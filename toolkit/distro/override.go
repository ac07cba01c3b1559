package distro

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/engine"
)

// Settings are what people can say of the runtime instead of what is detected, by
// the names that the reference installer has for them in the environment. All paths
// are the host's. "" is what was not said.
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

// setting is one of them, by its name.
type setting struct{ name, value string }

// of are the settings that are for one kind of runtime alone.
func (s Settings) of(kind engine.Kind) (config, socket setting) {
	switch kind {
	case engine.Containerd:
		return setting{"CONTAINERD_CONFIG", s.ContainerdConfig}, setting{"CONTAINERD_SOCKET", s.ContainerdSocket}
	case engine.Docker:
		return setting{"DOCKER_CONFIG", s.DockerConfig}, setting{"DOCKER_SOCKET", s.DockerSocket}
	}
	return setting{"CRIO_CONFIG", s.CRIOConfig}, setting{"CRIO_SOCKET", s.CRIOSocket}
}

// Kind is the runtime that is wanted, and the setting that says so; "" if none does.
// Settings that want different ones are refused, with both their names.
func (s Settings) Kind() (kind engine.Kind, by string, err error) {
	if s.Runtime != "" {
		kind, by = engine.Kind(s.Runtime), "RUNTIME="+s.Runtime
		if !slices.Contains([]engine.Kind{engine.Containerd, engine.Docker, engine.CRIO}, kind) {
			return "", "", fmt.Errorf("RUNTIME=%q is none; take containerd, docker or crio", s.Runtime)
		}
	}
	for _, k := range []engine.Kind{engine.Containerd, engine.Docker, engine.CRIO} {
		config, socket := s.of(k)
		for _, one := range []setting{config, socket} {
			switch {
			case one.value == "" || k == kind:
			case kind == "":
				kind, by = k, one.name
			default:
				return "", "", fmt.Errorf("%s is for %s and %s for %s; give one of them up, or say with RUNTIME which runtime is meant and leave the others' settings out", by, kind, one.name, k)
			}
		}
	}
	return kind, by, nil
}

// Empty says that nothing was said.
func (s Settings) Empty() bool { return s == Settings{} }

// Override is a profile with what people said in the place of what was detected. A
// setting for one kind of runtime counts more than the general one.
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
		return Profile{}, errors.New("no container runtime is detected; say with RUNTIME which it is (containerd, docker, crio)")
	}
	config, socket := s.of(p.Engine)
	p.socket(cmp.Or(socket.value, s.Socket))
	p.config(cmp.Or(config.value, s.Config))
	p.dropIn(s.DropIn)
	return p, p.restart(s.RestartMode)
}

// check says which path is none.
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

// plain is the arrangement of a runtime that no distribution arranges, on the same
// operating system.
func plain(kind engine.Kind, was Profile, by string) Profile {
	for _, p := range profiles() {
		if p.Name == string(kind) {
			p.InstallDir, p.ReadOnly = was.InstallDir, was.ReadOnly
			p.Why = fmt.Sprintf("%s is set", by)
			if was.Name != "" {
				p.Why += ", where " + was.Title + " was detected"
			}
			return p
		}
	}
	return was
}

func (p *Profile) socket(at string) {
	switch {
	case at == "":
	case p.Engine == engine.Docker:
		p.API = at
	default:
		p.Sockets = []string{at}
	}
}

func (p *Profile) config(name string) {
	if name == "" || name == p.Config || slices.Contains(p.Made, name) {
		return // a file that is made of the configuration says the same, and is not written
	}
	p.Config, p.Made, p.Managed, p.Owner = name, nil, "", ""
	if p.Engine != engine.CRIO { // which reads its directory beside any file
		p.Always = false
	}
	p.Why = strings.TrimPrefix(p.Why+"; the configuration was said to be "+name, "; ")
}

func (p *Profile) dropIn(name string) {
	if name == "" || name == p.DropIn {
		return
	}
	beside := path.Dir(name) == path.Dir(p.DropIn) && path.Ext(name) == path.Ext(p.DropIn)
	p.DropIn, p.Containerd1, p.Always = name, "", p.Always && (beside || p.Engine == engine.CRIO && path.Dir(name) == path.Dir(p.DropIn))
	p.Why = strings.TrimPrefix(p.Why+"; the drop-in was said to be "+name, "; ")
}

func (p *Profile) restart(mode string) error {
	const variable = "RUNTIME_RESTART_MODE="
	switch {
	case mode == "":
	case mode == "none":
		what := strings.Join(p.Restart.Units, " or ")
		message := "nothing is restarted, since " + variable + "none is set; restart " + what + " for the change to take effect"
		if p.Restart.Door == Nobody {
			message = p.Restart.Message
		}
		p.Restart = Restart{Door: Nobody, Message: message, Itself: p.Restart.Itself}
	case mode != "systemd" && mode != "signal":
		return fmt.Errorf("%s%q is none; take systemd, signal or none", variable, mode)
	case p.Restart.Door == Nobody:
		return fmt.Errorf("%s%s cannot be on %s: %s", variable, mode, p.Title, p.Restart.Message)
	case mode == "systemd":
		p.Restart.Door = Systemd
	case p.Engine != engine.Docker:
		return fmt.Errorf("%ssignal cannot be with %s, which ends on SIGHUP or takes no handlers by it; take systemd or none, or leave it out", variable, p.Engine)
	default:
		p.Restart.Door = Reload
	}
	return nil
}
