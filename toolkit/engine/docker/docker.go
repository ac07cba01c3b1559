// Package docker plans Docker's daemon.json. What is not asked for stays byte for
// byte: dockerd does not start with a key that it does not know, so nothing is
// written that its version may not know, and what cannot be read is refused.
//
// How dockerd reads it is that of github.com/moby/moby/v2, daemon/config/config.go
// and daemon/runtime_unix.go. A key that is a flag of dockerd as well
// (--default-runtime, --feature, --cdi-spec-dir) keeps it from starting; flags are
// not in its files, so that is seen only when it is told to take the new one.
package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// maxFile is the largest daemon.json that is read, in bytes; those that people
// write have some hundred.
const maxFile = 1 << 20

// The keys that are written.
const (
	runtimes       = "runtimes"
	defaultRuntime = "default-runtime"
	features       = "features"
	cdi            = "cdi" // in features
	specDirs       = "cdi-spec-dirs"
)

// defaultDirs is where dockerd looks for CDI specifications where nothing is said
// (DefaultSpecDirs of tags.cncf.io/container-device-interface/pkg/cdi).
var defaultDirs = []string{"/etc/cdi", "/var/run/cdi"}

// stock are the runtimes that dockerd has by itself.
var stock = []string{"runc", "io.containerd.runc.v2"}

// Plan returns what daemon.json has to be for dockerd to do what is wanted. Errors
// are a *engine.Refusal or the reason why the file cannot be read.
func Plan(files engine.Files, p engine.Place, w engine.Want) (engine.Plan, error) {
	data, err := files.ReadFile(p.Config, maxFile)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return engine.Plan{}, fmt.Errorf("the configuration of Docker cannot be read: %w", err)
	}
	doc, err := parse(p.Config, data)
	if err != nil {
		return engine.Plan{}, err
	}
	pl := &planner{place: p, doc: doc}
	if err := pl.plan(w); err != nil {
		return engine.Plan{}, err
	}
	if doc.err != nil {
		return engine.Plan{}, doc.err
	}
	if absent && len(pl.edits) == 0 {
		return engine.Plan{}, nil
	}
	if len(pl.edits) > 0 {
		data = doc.bytes()
	}
	file := &change.File{Data: data, Mode: mode(files, p.Config)}
	return engine.Plan{Items: []change.Item{{Path: p.Config, File: file}}, Edits: pl.edits}, nil
}

// Reloadable tells whether dockerd takes all of the edits when it is told to reload
// (SIGHUP), with no restart. It does so for runtimes and the default one, but forgets
// neither: what is taken away again, as by restoring a file without them, needs a
// restart. CDI and its directories are looked at only when it starts, though a reload
// shows them in `docker info`. A reload fails in the log alone: ask dockerd afterwards.
func Reloadable(edits []engine.Edit) bool {
	return !slices.ContainsFunc(edits, func(e engine.Edit) bool {
		return e.After == "" || e.Key != defaultRuntime && !strings.HasPrefix(e.Key, runtimes+".")
	})
}

// mode is the permissions that the file has: it can hold a proxy's password. A new
// file can be read by all.
func mode(files engine.Files, name string) fs.FileMode {
	if s, ok := files.(interface {
		Stat(name string) (fs.FileInfo, error)
	}); ok {
		if info, err := s.Stat(name); err == nil {
			return info.Mode().Perm()
		}
	}
	return 0o644
}

// planner changes a document key by key and notes what it changed.
type planner struct {
	place engine.Place
	doc   *document
	edits []engine.Edit
}

func (p *planner) plan(w engine.Want) error {
	if err := p.spelling(); err != nil {
		return err
	}
	for _, h := range w.Handlers {
		if err := p.handler(h); err != nil {
			return err
		}
	}
	if err := p.standard(w.Default); err != nil {
		return err
	}
	if !w.CDI {
		return nil
	}
	if err := p.cdi(); err != nil {
		return err
	}
	return p.dirs(w.CDIDirs)
}

// spelling refuses our keys in capitals: Go's JSON reader takes them for ours, and
// dockerd, which looks at them once more, for keys of other names.
func (p *planner) spelling() error {
	for _, m := range p.doc.members() {
		for _, key := range []string{runtimes, defaultRuntime, features, specDirs} {
			if name := text(m.Name); name != key && strings.EqualFold(name, key) {
				return p.doc.refuse(m.Name, name, "dockerd does not know this key in these letters; write it as "+key)
			}
		}
	}
	return nil
}

func (p *planner) handler(h engine.Handler) error {
	if h.Name == "" || !utf8.ValidString(h.Name) || !utf8.ValidString(h.Program) || !path.IsAbs(h.Program) {
		return p.doc.whole(fmt.Sprintf("a handler needs a name and the absolute path of its program, not %q and %q", h.Name, h.Program))
	}
	if slices.Contains(stock, h.Name) {
		return p.doc.whole(fmt.Sprintf("%s is Docker's own runtime and cannot be another program; give the handler another name", h.Name))
	}
	key := join(runtimes, h.Name)
	entry, err := p.doc.object(runtimes, h.Name)
	if err != nil {
		return err
	}
	field, before := "path", ""
	for _, m := range membersOf(entry) {
		switch name := text(m.Name); {
		case strings.EqualFold(name, "path"): // as Go's JSON reader has it
			if before != "" {
				return p.doc.refuse(m.Name, key, "path is there twice, in other letters; dockerd takes the last: remove one")
			}
			if m.Value.Value.Kind() != '"' {
				return p.doc.odd(m.Value, join(key, name), "a string")
			}
			field, before = name, raw(m.Value)
		case strings.EqualFold(name, "runtimeType"), strings.EqualFold(name, "options"):
			return p.doc.refuse(m.Name, key, "this runtime is a containerd shim by its "+name+", which cannot have a path as well; remove it, or give the handler another name")
		}
	}
	p.set(join(key, field), before, quote(h.Program), runtimes, h.Name, field)
	return nil
}

// standard makes a handler the one of containers that name none.
func (p *planner) standard(name string) error {
	if name == "" {
		return nil
	}
	all, err := p.doc.object(runtimes)
	if err != nil {
		return err
	}
	shim, _, dotted := strings.Cut(name, ".") // containerd's shims go by their name
	if find(all, name) == nil && !slices.Contains(stock, name) && (!dotted || shim == "" || strings.Contains(name, "/")) {
		return p.doc.whole(fmt.Sprintf("%s cannot be the default: it is not among the runtimes, and dockerd would not start", name))
	}
	before := ""
	if m := p.doc.find(defaultRuntime); m != nil {
		if m.Value.Value.Kind() != '"' {
			return p.doc.odd(m.Value, defaultRuntime, "a string")
		}
		before = raw(m.Value)
	}
	p.set(defaultRuntime, before, quote(name), defaultRuntime)
	return nil
}

// cdi switches CDI on. Docker has it since 25.0 behind a feature flag, on by default
// since 28.2 (moby/moby#47087, #49963); before, the flag is known and means nothing.
func (p *planner) cdi() error {
	since := version(p.place.Version)
	if since == none {
		return p.doc.whole("Docker " + p.place.Version + " has no CDI; 25.0 and newer have: ask for a handler instead, or upgrade Docker")
	}
	all, err := p.doc.object(features)
	if err != nil {
		return err
	}
	before := ""
	if m := find(all, cdi); m != nil {
		if k := m.Value.Value.Kind(); k != 't' && k != 'f' {
			return p.doc.odd(m.Value, join(features, cdi), "true or false")
		}
		before = raw(m.Value)
	} else if since == standard {
		return nil
	}
	p.set(join(features, cdi), before, "true", features, cdi)
	return nil
}

// dirs sees to it that CDI specifications are looked for in all of the directories.
// A list in the file stands for Docker's own; one that is empty, or is [""], turns
// CDI off.
func (p *planner) dirs(want []string) error {
	have, before := defaultDirs, ""
	m := p.doc.find(specDirs)
	if m != nil {
		var err error
		if have, err = p.list(m.Value); err != nil {
			return err
		}
		before = raw(m.Value)
	}
	var missing []string
	nothing := m != nil && (len(have) == 0 || len(have) == 1 && have[0] == "")
	if nothing {
		have, missing = nil, slices.Clone(defaultDirs)
	}
	for _, d := range want {
		if !slices.ContainsFunc(slices.Concat(have, missing), func(h string) bool { return same(h, d) }) {
			missing = append(missing, d)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if m == nil && version(p.place.Version) == unknown {
		return p.doc.whole(specDirs + ": Docker before 25.0 does not start with this key, and this one's version is not known; say which it is, or write specifications to " + strings.Join(defaultDirs, " or "))
	}
	after := list(slices.Concat(have, missing))
	p.note(specDirs, before, after)
	if m == nil || nothing {
		p.doc.set(after, specDirs)
		return nil
	}
	p.doc.extend(specDirs, missing)
	return nil
}

// list reads an array of strings.
func (p *planner) list(v hujson.Value) ([]string, error) {
	array, ok := v.Value.(*hujson.Array)
	if !ok {
		return nil, p.doc.odd(v, specDirs, "a list of directories")
	}
	var all []string
	for _, e := range array.Elements {
		if e.Value.Kind() != '"' {
			return nil, p.doc.odd(e, specDirs, "a directory")
		}
		all = append(all, text(e))
	}
	return all, nil
}

// same tells whether two paths are the same directory: /var/run is a link to /run
// wherever systemd is, and in the Filesystem Hierarchy Standard 3.0, 5.13.
func same(a, b string) bool {
	run := func(p string) string {
		p = path.Clean(p)
		if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
			return "/run/" + rest
		}
		return p
	}
	return run(a) == run(b)
}

func (p *planner) set(key, before, after string, at ...string) {
	if before == after {
		return
	}
	p.note(key, before, after)
	p.doc.set(after, at...)
}

func (p *planner) note(key, before, after string) {
	p.edits = append(p.edits, engine.Edit{File: p.place.Config, Key: key, Before: before, After: after})
}

// support is what a version of Docker does about CDI.
type support int

const (
	unknown support = iota
	none
	flagged
	standard
)

// version reads "28.2.1", "27.5.1+dfsg1", "v25.0.3". Docker counts by years since
// 17.03; before it was at 1.x. Anything else is a build of someone's own.
func version(s string) support {
	majorText, rest, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	major, err1 := strconv.Atoi(majorText)
	other := func(r rune) bool { return r < '0' || r > '9' }
	minorText := rest
	if end := strings.IndexFunc(rest, other); end >= 0 {
		minorText = rest[:end]
	}
	minor, err2 := strconv.Atoi(minorText)
	switch {
	case err1 != nil || err2 != nil || major < 1 || major > 1 && major < 17:
		return unknown
	case major < 25:
		return none
	case major < 28 || major == 28 && minor < 2:
		return flagged
	}
	return standard
}
