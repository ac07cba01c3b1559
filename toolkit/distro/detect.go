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
	"github.com/gpuready/gpuready/toolkit/engine"
)

// maxFile bounds what is read of any file of the host here.
const maxFile = 1 << 20

// Profiles are all there are, most specific first.
func Profiles() []Profile { return slices.Clone(profiles()) }

// Found is what is known of the node's runtime beforehand.
type Found struct {
	Socket  string // that the kubelet uses, of the host; "": not known
	Runtime string // what it calls itself over CRI, "containerd", "cri-o", "docker"; "": not known
}

// Detect tells a node's arrangement by the files below the host's root and the
// socket at which a runtime was found, "" if none was. Where several fit, it is the
// most specific; its Why says so.
func Detect(root *host.Root, socket string) (Profile, error) {
	return Found{Socket: socket}.Detect(root)
}

// Detect is the function, with all that is known.
func (f Found) Detect(root *host.Root) (Profile, error) {
	release, err := osRelease(root)
	if err != nil {
		return Profile{}, err
	}
	n := node{root: root, release: release, found: f}
	p, ok := n.first()
	if !ok {
		return Profile{}, n.unknown()
	}
	n.system(&p)
	return p, n.settle(&p)
}

// node is what a profile is held against.
type node struct {
	root    *host.Root
	release map[string]string
	found   Found
}

func (n node) first() (Profile, bool) {
	fitting := slices.DeleteFunc(Profiles(), func(p Profile) bool { return !n.fits(p) })
	switch {
	case len(fitting) > 0:
		p := n.newest(fitting)
		if p.Why == "" {
			p.Why = n.because(p, fitting[1:])
		}
		return p, true
	case n.found.Runtime == "":
		return Profile{}, false
	}
	for _, p := range Profiles() { // at a socket that no profile knows
		if len(p.Detect.OSRelease) == 0 && string(p.Engine) == p.Name && p.Engine == kinds[n.found.Runtime] {
			p.Why = fmt.Sprintf("the runtime at %s calls itself %s; no distribution is known that has it there", n.found.Socket, n.found.Runtime)
			p.Sockets = []string{n.found.Socket}
			return p, true
		}
	}
	return Profile{}, false
}

// kinds are the runtimes by what they call themselves over CRI.
var kinds = map[string]engine.Kind{"containerd": engine.Containerd, "cri-o": engine.CRIO, "docker": engine.Docker}

// fits says whether a profile holds here.
func (n node) fits(p Profile) bool {
	d := p.Detect
	switch kind, known := kinds[n.found.Runtime]; {
	case known && kind != p.Engine, !n.runs(d.OSRelease):
		return false
	case len(d.Paths) > 0 && !slices.ContainsFunc(d.Paths, n.exists):
		return false
	case d.Config != "" && unitConfig(n.root, p.Restart.Units) != d.Config:
		return false
	}
	return n.listens(p) && (n.found.Runtime != "" || !n.withoutCRI(p))
}

// runs says whether the operating system is one with these values.
func (n node) runs(values map[string]string) bool {
	for key, value := range values {
		if have := n.release[key]; have == "" || value != "*" && have != value {
			return false
		}
	}
	return true
}

// listens says whether the runtime that was found, or else one that is there, has
// the profile's socket. Docker has its own beside any.
func (n node) listens(p Profile) bool {
	if p.Detect.Socket == "" {
		return true
	}
	if n.found.Socket != "" && p.API == "" {
		return n.same(n.found.Socket, p.Detect.Socket)
	}
	return slices.ContainsFunc(append([]string{p.Detect.Socket}, p.Sockets...), func(at string) bool {
		info, err := n.root.Stat(at)
		return n.found.Socket != "" && n.same(n.found.Socket, at) || err == nil && info.Mode()&fs.ModeSocket != 0
	})
}

// withoutCRI says whether this is a containerd that is told to serve no CRI: Docker's
// packages bring it so, and no kubelet uses it then.
func (n node) withoutCRI(p Profile) bool {
	if p.Engine != engine.Containerd {
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

// same says whether two paths lead to one place: /var/run is a link to /run.
func (n node) same(a, b string) bool {
	x, errX := n.root.Resolve(a)
	y, errY := n.root.Resolve(b)
	trim := func(s string) string {
		if rest, is := strings.CutPrefix(path.Clean(s), "/var/run/"); is {
			return "/run/" + rest
		}
		return path.Clean(s)
	}
	return errX == nil && errY == nil && x == y || trim(a) == trim(b)
}

// newest chooses among distributions that use one socket: what one that is not used
// any more left behind is older than what the other wrote when it was started.
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
		best.Why = fmt.Sprintf("%s was written last; %s has files here too", best.Config, loser)
	}
	return best
}

func (n node) written(p Profile) (t time.Time) {
	if info, err := n.root.Stat(p.Config); err == nil {
		t = info.ModTime()
	}
	return t
}

// because says why it is that profile.
func (n node) because(p Profile, others []Profile) string {
	var why []string
	for key := range p.Detect.OSRelease {
		why = append(why, fmt.Sprintf("/etc/os-release has %s=%s", key, n.release[key]))
	}
	if p.Detect.Socket != "" {
		at := p.Detect.Socket
		if n.found.Socket != "" {
			at = n.found.Socket
		}
		why = append(why, "the runtime's socket is "+at)
	}
	if i := slices.IndexFunc(p.Detect.Paths, n.exists); i >= 0 {
		why = append(why, p.Detect.Paths[i]+" is there")
	}
	if p.Detect.Config != "" {
		why = append(why, "its unit names "+p.Detect.Config)
	}
	text := strings.Join(why, ", ")
	if len(others) > 0 {
		text += "; " + others[0].Title + " would fit too, and is less specific"
	}
	return text
}

// system adds what the operating system does not let be written, where the
// distribution upon it says nothing of that: k3s on Flatcar.
func (n node) system(p *Profile) {
	if p.InstallDir != "" || len(p.ReadOnly) > 0 {
		return
	}
	for _, os := range Profiles() {
		if len(os.Detect.OSRelease) > 0 && n.runs(os.Detect.OSRelease) {
			p.InstallDir, p.ReadOnly = os.InstallDir, os.ReadOnly
			p.Why += "; what can be written is as on " + os.Title
			return
		}
	}
}

// settle is what the files say of whether drop-ins are read, and of where the
// configuration is.
func (n node) settle(p *Profile) error {
	if named := unitConfig(n.root, p.Restart.Units); named != "" && named != p.Config && len(p.Made) == 0 && p.Owner == "" {
		p.Config = named
		p.Why += "; its unit names " + named
	}
	if p.Managed != "" && !n.managed(*p) {
		p.Always, p.Owner = false, ""
		p.Why += "; " + p.Config + " is people's, since its first line is not " + p.Managed
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

// managed says whether the owner still writes the configuration.
func (n node) managed(p Profile) bool {
	data, err := n.root.ReadFile(p.Config, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return true // it will at its next start
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return err == nil && string(line) == p.Managed
}

// imports are the files that a configuration imports; none where there is none.
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
		return nil, &engine.Refusal{File: name, Message: fmt.Sprintf("it cannot be read (%v), though it is made by a program; see that program's log", err)}
	}
	return c.Imports, nil
}

// unknown says what is to be done where nothing fits.
func (n node) unknown() error {
	if n.found.Socket == "" {
		return errors.New("no container runtime is found: containerd, CRI-O and Docker have no socket where they usually do; start one, or say with RUNTIME and RUNTIME_SOCKET which it is")
	}
	return fmt.Errorf("no arrangement is known with a container runtime at %s; say with RUNTIME which it is (containerd, docker, crio), and with RUNTIME_CONFIG where its configuration is", n.found.Socket)
}
