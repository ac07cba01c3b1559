package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Reasons in the toolkit's state; part of the contract.
const (
	ReasonSilent    gpu.Reason = "RuntimeSilent"
	ReasonDisabled  gpu.Reason = "CDIDisabled"
	ReasonDirectory gpu.Reason = "CDIDirectory"
)

// The names that runtimes report.
const (
	containerdName = "containerd"
	dockerName     = "docker"
)

// Advise returns the problem of a runtime with CDI names whose specifications are in dir,
// and exactly what to change. Both are empty if there is none. same reports whether two
// paths are the same directory.
func Advise(a Info, dir string, same func(a, b string) bool) (gpu.Reason, string) {
	dirs := a.CDIDirs
	if !slices.ContainsFunc(dirs, func(d string) bool { return same(d, dir) }) {
		dirs = append(slices.Clone(dirs), dir)
	}
	list := fmt.Sprintf(`cdi_spec_dirs = ["%s"]`, strings.Join(dirs, `", "`))
	switch {
	case a.Name == dockerName && a.CDI != nil && !*a.CDI:
		return ReasonDisabled, a.nameVersion() + ` does not resolve CDI names; set "features": {"cdi": true} in /etc/docker/daemon.json and restart it (Docker 25.0 and later; from 28.2 on it is the default)`
	case a.Name == dockerName && len(a.CDIDirs) > 0 && len(dirs) > len(a.CDIDirs):
		return ReasonDirectory, fmt.Sprintf(`%s reads CDI specifications from %s and not from %s; set "cdi-spec-dirs": ["%s"] in /etc/docker/daemon.json and restart it`,
			a.nameVersion(), strings.Join(a.CDIDirs, ", "), dir, strings.Join(dirs, `", "`))
	case a.CDI != nil && !*a.CDI:
		if !hasCDI(a) {
			return ReasonDisabled, a.nameVersion() + " has no CDI; upgrade to containerd 1.7 or later, better 2.1"
		}
		return ReasonDisabled, a.nameVersion() + " does not resolve CDI names, and containers would start without their GPUs; set enable_cdi = true and " + list + " in " + a.place("cri") + " and restart it"
	case len(a.CDIDirs) > 0 && len(dirs) > len(a.CDIDirs):
		return ReasonDirectory, fmt.Sprintf("%s reads CDI specifications from %s and not from %s; set %s in %s and restart it, or have them written elsewhere with --cdi-output-dir",
			a.nameVersion(), strings.Join(a.CDIDirs, ", "), dir, list, a.place("cri"))
	}
	return "", ""
}

// AdviseNRI returns exactly what to change so that the runtime accepts plugins at the NRI
// socket at.
func AdviseNRI(a Info, at string) string {
	const otherwise = ", or use the manifests' privileged variant"
	release, known := ParseRelease(a.Version)
	switch {
	case a.Name == containerdName && known && !release.AtLeast(1, 7):
		return a.nameVersion() + " has no NRI; upgrade to 2.1 or later" + otherwise
	case a.Name == containerdName && release.Major == 1:
		return a.nameVersion() + " has NRI turned off by default; set disable = false in " + a.place("nri") + " and restart it" + otherwise
	case a.Name == containerdName:
		return a.nameVersion() + " has NRI turned on by default; remove disable = true or disable_connections = true from " + a.place("nri") + " and restart it; if socket_path is set there, pass it as --nri-socket" + otherwise
	case a.Name == "cri-o":
		return a.nameVersion() + ": set enable_nri = true in " + a.place("nri") + " and restart it; if nri_listen is set there, pass it as --nri-socket" + otherwise
	case a.Socket != "":
		return "the container runtime at " + a.Socket + " does not report its name; turn NRI on in it, with its socket at " + at + otherwise
	}
	return "no container runtime was found either; pass its sockets as --runtime-socket and --nri-socket" + otherwise
}

func hasCDI(a Info) bool {
	release, known := ParseRelease(a.Version)
	return a.Name != containerdName || !known || release.AtLeast(1, 7)
}

// nameVersion returns the runtime's name and version.
func (a Info) nameVersion() string { return strings.TrimSpace(a.Name + " " + a.Version) }

// place returns the table, and its file, of a runtime's settings for "cri" or "nri".
func (a Info) place(what string) string {
	if a.Name != containerdName {
		table := map[string]string{"cri": "crio.runtime", "nri": "crio.nri"}[what]
		return "the table [" + table + "] of a file in /etc/crio/crio.conf.d"
	}
	release, known := ParseRelease(a.Version)
	two := release.AtLeast(2, 0) || !known
	table := map[string]string{"cri": "io.containerd.grpc.v1.cri", "nri": "io.containerd.nri.v1.nri"}[what]
	if what == "cri" && two {
		table = "io.containerd.cri.v1.runtime"
	}
	file := "/etc/containerd/config.toml"
	switch {
	case strings.HasPrefix(a.Socket, "/run/k3s/"):
		name := "config.toml.d"
		if two {
			name = "config-v3.toml.d"
		}
		file = "a .toml file in /var/lib/rancher/k3s/agent/etc/containerd/" + name + " (RKE2: /var/lib/rancher/rke2/agent/etc/containerd/" + name + ")"
	case strings.HasPrefix(a.Socket, "/run/k0s/"):
		file = "a .toml file in /etc/k0s/containerd.d"
	case strings.HasPrefix(a.Socket, "/var/snap/microk8s/"):
		file = "/var/snap/microk8s/current/args/containerd-template.toml"
	}
	return fmt.Sprintf(`the table [plugins."%s"] of %s`, table, file)
}
