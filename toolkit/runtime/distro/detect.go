package distro

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// maxFile limits the size of any file of the host that is read here.
const maxFile = 1 << 20

// Detect detects a node's profile from the files below the host's root, the socket that
// the kubelet uses, and the name that its runtime reports over CRI: "containerd", "cri-o" or
// "docker". Either may be "", which is unknown. If several profiles match, Detect returns
// the most specific one and mentions that in Reason.
func Detect(root *host.Root, socket, name string) (Profile, error) {
	release, err := osRelease(root)
	if err != nil {
		return Profile{}, err
	}
	n := node{root: root, release: release, socket: socket, runtime: name}
	p, ok := n.first()
	if !ok {
		return Profile{}, n.unknown()
	}
	n.addSystem(&p)
	return p, n.refine(&p)
}

// node holds the facts that profiles are matched against.
type node struct {
	root    *host.Root
	release map[string]string
	socket  string
	runtime string
}

func (n node) first() (Profile, bool) {
	fitting := slices.DeleteFunc(slices.Clone(profiles()), func(p Profile) bool { return !n.fits(p) })
	switch {
	case len(fitting) > 0:
		p := n.newest(fitting)
		if p.Reason == "" {
			p.Reason = n.explain(p, fitting[1:])
		}
		return p, true
	case n.runtime == "":
		return Profile{}, false
	}
	for _, p := range profiles() { // at a socket that no profile knows
		if len(p.Detect.OSRelease) == 0 && string(p.Engine) == p.Name && p.Engine == kinds[n.runtime] {
			p.Reason = fmt.Sprintf("the runtime at %s reports the name %s; no known distribution has it there", n.socket, n.runtime)
			p.Sockets = []string{n.socket}
			return p, true
		}
	}
	return Profile{}, false
}

// kinds maps the names that runtimes report over CRI to their kinds.
var kinds = map[string]runtime.Kind{"containerd": runtime.Containerd, "cri-o": runtime.CRIO, "docker": runtime.Docker}

// fits reports whether the node matches a profile.
func (n node) fits(p Profile) bool {
	d := p.Detect
	switch kind, known := kinds[n.runtime]; {
	case known && kind != p.Engine, !n.runs(d.OSRelease):
		return false
	case len(d.Paths) > 0 && !slices.ContainsFunc(d.Paths, n.exists):
		return false
	case d.Config != "" && unitConfig(n.root, p.Restart.Units) != d.Config:
		return false
	}
	return n.listens(p) && (n.runtime != "" || !n.withoutCRI(p))
}

// runs reports whether os-release has these values.
func (n node) runs(values map[string]string) bool {
	for key, value := range values {
		if have := n.release[key]; have == "" || value != "*" && have != value {
			return false
		}
	}
	return true
}

// listens reports whether the runtime that was found listens on the profile's socket.
// If none was found, any existing socket of the profile will do. Docker's own API is
// independent of the socket that was found.
func (n node) listens(p Profile) bool {
	if p.Detect.Socket == "" {
		return true
	}
	if n.socket != "" && p.API == "" {
		return n.samePath(n.socket, p.Detect.Socket)
	}
	return slices.ContainsFunc(append([]string{p.Detect.Socket}, p.Sockets...), func(at string) bool {
		info, err := n.root.Stat(at)
		return n.socket != "" && n.samePath(n.socket, at) || err == nil && info.Mode()&fs.ModeSocket != 0
	})
}

// withoutCRI reports whether this is a containerd that is configured without CRI. This
// is the default in Docker's packages, and no kubelet uses such a containerd.
func (n node) withoutCRI(p Profile) bool {
	if p.Engine != runtime.Containerd {
		return false
	}
	var c struct {
		Disabled []string `toml:"disabled_plugins"`
	}
	data, err := n.root.ReadFile(p.Config, maxFile)
	if err != nil || toml.Unmarshal(data, &c) != nil {
		return false
	}
	return slices.ContainsFunc(c.Disabled, func(s string) bool {
		return s == "cri" || s == "io.containerd.grpc.v1.cri" || s == "io.containerd.cri.v1.runtime"
	})
}

func (n node) exists(name string) bool {
	_, err := n.root.Stat(name)
	return err == nil
}

// samePath reports whether two paths resolve to the same one: /var/run is a link to /run.
func (n node) samePath(a, b string) bool {
	x, errX := n.root.Resolve(a)
	y, errY := n.root.Resolve(b)
	return errX == nil && errY == nil && x == y || runtime.SameDir(a, b)
}

// newest chooses among distributions that use the same socket. The files that a
// retired one left behind are older than those that the other wrote at its start.
func (n node) newest(fitting []Profile) Profile {
	best, at := fitting[0], n.written(fitting[0])
	for _, p := range fitting[1:] {
		if p.Detect.Socket != best.Detect.Socket || len(p.Detect.Paths) == 0 || len(best.Detect.Paths) == 0 {
			continue
		}
		when := n.written(p)
		loser := p.Title
		if when.After(at) {
			loser, best, at = best.Title, p, when
		}
		best.Reason = fmt.Sprintf("%s is the newest configuration; %s has files here too", best.Config, loser)
	}
	return best
}

func (n node) written(p Profile) (t time.Time) {
	if info, err := n.root.Stat(p.Config); err == nil {
		t = info.ModTime()
	}
	return t
}

// explain returns the reason why the profile was chosen.
func (n node) explain(p Profile, others []Profile) string {
	var why []string
	for key := range p.Detect.OSRelease {
		why = append(why, fmt.Sprintf("/etc/os-release has %s=%s", key, n.release[key]))
	}
	if p.Detect.Socket != "" {
		at := p.Detect.Socket
		if n.socket != "" {
			at = n.socket
		}
		why = append(why, "the runtime's socket is "+at)
	}
	if i := slices.IndexFunc(p.Detect.Paths, n.exists); i >= 0 {
		why = append(why, p.Detect.Paths[i]+" exists")
	}
	if p.Detect.Config != "" {
		why = append(why, "its unit names "+p.Detect.Config)
	}
	text := strings.Join(why, ", ")
	if len(others) > 0 {
		text += "; " + others[0].Title + " matches too, but is less specific"
	}
	return text
}

// addSystem adds the operating system's read-only directories if the profile of the
// distribution on top names none: k3s on Flatcar.
func (n node) addSystem(p *Profile) {
	if p.InstallDir != "" || len(p.ReadOnly) > 0 {
		return
	}
	for _, os := range profiles() {
		if len(os.Detect.OSRelease) > 0 && n.runs(os.Detect.OSRelease) {
			p.InstallDir, p.ReadOnly = os.InstallDir, os.ReadOnly
			p.Reason += "; the read-only directories are those of " + os.Title
			return
		}
	}
}

// refine sets the path of the configuration, and whether drop-ins are read, from the
// node's files.
func (n node) refine(p *Profile) error {
	if named := unitConfig(n.root, p.Restart.Units); named != "" && named != p.Config && len(p.Generated) == 0 && p.Owner == "" {
		p.Config = named
		p.Reason += "; its unit names " + named
	}
	if p.Managed != "" && !n.managed(*p) {
		p.Always, p.Owner = false, ""
		p.Reason += "; " + p.Config + " is maintained by hand, since its first line is not " + p.Managed
	}
	if p.Containerd1 == "" || p.Always {
		return nil
	}
	imports, err := n.imports(p.Config)
	if err != nil {
		return err
	}
	for _, dropIn := range []string{p.DropIn, p.Containerd1} {
		if slices.ContainsFunc(imports, func(pattern string) bool {
			covers, err := path.Match(pattern, dropIn)
			return err == nil && covers
		}) {
			p.DropIn, p.Containerd1, p.Always = dropIn, "", true
			return nil
		}
	}
	return nil
}

// managed reports whether the owner still writes the configuration.
func (n node) managed(p Profile) bool {
	data, err := n.root.ReadFile(p.Config, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return true // the owner writes it at its next start
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return err == nil && string(line) == p.Managed
}

// imports returns the imports of a configuration, none if the file does not exist.
func (n node) imports(name string) ([]string, error) {
	data, err := n.root.ReadFile(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c struct {
		Imports []string `toml:"imports"`
	}
	if err := toml.Unmarshal(data, &c); err != nil {
		return nil, &runtime.Refusal{File: name, Message: fmt.Sprintf("this generated file cannot be parsed (%v); see the log of the program that writes it", err)}
	}
	return c.Imports, nil
}

// unknown returns the error for a node that matches no profile, with a remedy.
func (n node) unknown() error {
	if n.socket == "" {
		return errors.New("no container runtime is found: containerd, CRI-O and Docker have no socket in the usual places; start one, or name it with RUNTIME and RUNTIME_SOCKET")
	}
	return fmt.Errorf("no known distribution has a container runtime at %s; name it with RUNTIME (containerd, docker, crio), and its configuration with RUNTIME_CONFIG", n.socket)
}
