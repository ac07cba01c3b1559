// Package docker plans changes to Docker's daemon.json. Everything else in the file
// stays byte for byte. dockerd does not start with a key that it does not know, so
// nothing is written that its version may not know. A file that cannot be read is
// refused.
//
// The rules are those of github.com/moby/moby/v2, daemon/config/config.go and
// daemon/runtime_unix.go. A key that is also set by a flag of dockerd
// (--default-runtime, --feature, --cdi-spec-dir) keeps it from starting. Flags are
// not in its files, so such a conflict only shows when dockerd loads the new file.
package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// maxFile limits the size of daemon.json, in bytes. Those that people write have a few
// hundred.
const maxFile = 1 << 20

// The keys that are written.
const (
	runtimes       = "runtimes"
	defaultRuntime = "default-runtime"
	features       = "features"
	cdi            = "cdi" // in features
	specDirs       = "cdi-spec-dirs"
)

// builtinRuntimes are the runtimes that are built into dockerd.
var builtinRuntimes = []string{"runc", "io.containerd.runc.v2"}

// Plan returns the daemon.json that gives dockerd the wanted abilities. Errors are an
// *runtime.Refusal or the reason why the file cannot be read.
func Plan(files runtime.Files, p runtime.Place, w runtime.Want) (runtime.Plan, error) {
	data, err := files.ReadFile(p.Config, maxFile)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return runtime.Plan{}, fmt.Errorf("the configuration of Docker cannot be read: %w", err)
	}
	doc, err := parse(p.Config, data)
	if err != nil {
		return runtime.Plan{}, err
	}
	pl := &planner{place: p, doc: doc}
	if err := pl.plan(w); err != nil {
		return runtime.Plan{}, err
	}
	if doc.err != nil {
		return runtime.Plan{}, doc.err
	}
	if absent && len(pl.edits) == 0 {
		return runtime.Plan{}, nil
	}
	if len(pl.edits) > 0 {
		data = doc.bytes()
	}
	return runtime.Plan{Items: []apply.Item{runtime.ConfigItem(p.Config, data)}, Edits: pl.edits}, nil
}

// Reloadable reports whether a reload (SIGHUP) applies all of the edits, so that
// dockerd needs no restart. A reload applies new runtimes and a new default, but
// removing them, as by restoring a file without them, needs a restart. CDI and its
// directories only take effect at start, though a reload shows them in `docker info`.
// A failed reload is only logged: query dockerd afterwards.
func Reloadable(edits []runtime.Edit) bool {
	return !slices.ContainsFunc(edits, func(e runtime.Edit) bool {
		return e.After == "" || e.Key != defaultRuntime && !strings.HasPrefix(e.Key, runtimes+".")
	})
}

// planner changes a document key by key and records the edits.
type planner struct {
	place runtime.Place
	doc   *document
	edits []runtime.Edit
}

func (p *planner) plan(w runtime.Want) error {
	if err := p.checkSpelling(); err != nil {
		return err
	}
	for _, h := range w.Handlers {
		if err := p.handler(h); err != nil {
			return err
		}
	}
	if err := p.setDefault(w.Default); err != nil {
		return err
	}
	if !w.CDI {
		return nil
	}
	if err := p.enableCDI(); err != nil {
		return err
	}
	return p.addDirs(w.CDIDirs)
}

// checkSpelling refuses our keys in capitals. Go's JSON decoder accepts them, but
// dockerd's second check treats them as unknown keys.
func (p *planner) checkSpelling() error {
	for _, m := range p.doc.members() {
		for _, key := range []string{runtimes, defaultRuntime, features, specDirs} {
			if name := text(m.Name); name != key && strings.EqualFold(name, key) {
				return p.doc.refuse(m.Name, name, "dockerd does not know this key in these letters; write it as "+key)
			}
		}
	}
	return nil
}

func (p *planner) handler(h runtime.Handler) error {
	if h.Name == "" || !utf8.ValidString(h.Name) || !utf8.ValidString(h.Program) || !path.IsAbs(h.Program) {
		return p.doc.whole(fmt.Sprintf("a handler needs a name and the absolute path of its program, not %q and %q", h.Name, h.Program))
	}
	if slices.Contains(builtinRuntimes, h.Name) {
		return p.doc.whole(fmt.Sprintf("%s is Docker's own runtime and cannot be another program; give the handler another name", h.Name))
	}
	key := join(runtimes, h.Name)
	all, err := p.doc.object(runtimes, h.Name)
	if err != nil {
		return err
	}
	var entry *hujson.Value
	if m := find(all, h.Name); !isNull(m) {
		if entry = &m.Value; entry.Value.Kind() != '{' {
			return p.doc.odd(*entry, key, "an object, {…}")
		}
	}
	field, before := "path", ""
	for _, m := range membersOf(entry) {
		switch name := text(m.Name); {
		case strings.EqualFold(name, "path"): // as Go's JSON decoder matches names; the last applies
			if k := m.Value.Value.Kind(); k != '"' && k != 'n' {
				return p.doc.odd(m.Value, join(key, name), "a string")
			}
			field, before = name, raw(m.Value)
		case isNull(&m):
		case strings.EqualFold(name, "runtimeType") && raw(m.Value) != `""`, strings.EqualFold(name, "options") && raw(m.Value) != "{}":
			return p.doc.refuse(m.Name, key, "this runtime is a containerd shim by its "+name+", which cannot have a path as well; remove it, or give the handler another name")
		}
	}
	p.set(join(key, field), before, quote(h.Program), runtimes, h.Name, field)
	return nil
}

// setDefault makes a handler the default for containers that name none.
func (p *planner) setDefault(name string) error {
	if name == "" {
		return nil
	}
	all, err := p.doc.object(runtimes, name)
	if err != nil {
		return err
	}
	shim, _, dotted := strings.Cut(name, ".") // containerd's shims go by their name
	if find(all, name) == nil && !slices.Contains(builtinRuntimes, name) && (!dotted || shim == "" || strings.Contains(name, "/")) {
		return p.doc.whole(fmt.Sprintf("%s cannot be the default: it is not among the runtimes, and dockerd would not start", name))
	}
	before := ""
	if m := p.doc.find(defaultRuntime); m != nil {
		if k := m.Value.Value.Kind(); k != '"' && k != 'n' {
			return p.doc.odd(m.Value, defaultRuntime, "a string")
		}
		before = raw(m.Value)
	}
	p.set(defaultRuntime, before, quote(name), defaultRuntime)
	return nil
}

// enableCDI switches CDI on. Docker has had it since 25.0 behind a feature flag, on by
// default since 28.2 (moby/moby#47087, #49963). Before 25.0 the flag is accepted and
// has no effect.
func (p *planner) enableCDI() error {
	support := cdiSupport(p.place.Version)
	if support == none {
		return p.doc.whole("Docker " + p.place.Version + " has no CDI; 25.0 and newer have: ask for a handler instead, or upgrade Docker")
	}
	all, err := p.doc.object(features, cdi)
	if err != nil {
		return err
	}
	before := ""
	if m := find(all, cdi); m != nil {
		if k := m.Value.Value.Kind(); k != 't' && k != 'f' && k != 'n' { // null is false
			return p.doc.odd(m.Value, join(features, cdi), "true or false")
		}
		before = raw(m.Value)
	} else if support == onDefault {
		return nil
	}
	p.set(join(features, cdi), before, "true", features, cdi)
	return nil
}

// addDirs adds the directories to those that dockerd searches for CDI specifications.
// A list in the file replaces Docker's own. An empty list, or [""], turns CDI off.
func (p *planner) addDirs(want []string) error {
	have, before := runtime.DefaultCDIDirs, ""
	m := p.doc.find(specDirs)
	if m != nil {
		before = raw(m.Value)
	}
	if !isNull(m) {
		var err error
		if have, err = p.list(m.Value); err != nil {
			return err
		}
	}
	var missing []string
	nothing := !isNull(m) && (len(have) == 0 || len(have) == 1 && have[0] == "")
	if nothing {
		have, missing = nil, slices.Clone(runtime.DefaultCDIDirs)
	}
	missing = append(missing, runtime.MissingDirs(slices.Concat(have, missing), want)...)
	if len(missing) == 0 {
		return nil
	}
	if m == nil && cdiSupport(p.place.Version) == unknown {
		return p.doc.whole(specDirs + ": Docker before 25.0 does not start with this key, and this one's version is not known; say which it is, or write specifications to " + strings.Join(runtime.DefaultCDIDirs, " or "))
	}
	after := list(slices.Concat(have, missing))
	p.recordEdit(specDirs, before, after)
	if isNull(m) || nothing {
		p.doc.set(after, specDirs)
		return nil
	}
	p.doc.extend(specDirs, missing)
	return nil
}

// list returns the strings of an array.
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

func (p *planner) set(key, before, after string, at ...string) {
	if before == after {
		return
	}
	p.recordEdit(key, before, after)
	p.doc.set(after, at...)
}

func (p *planner) recordEdit(key, before, after string) {
	p.edits = append(p.edits, runtime.Edit{File: p.place.Config, Key: key, Before: before, After: after})
}

// support is the CDI support of a version of Docker.
type support int

const (
	unknown   support = iota
	none              // no CDI
	flagged           // behind a feature flag
	onDefault         // on by default
)

// cdiSupport returns the support of a version such as "28.2.1", "27.5.1+dfsg1" or
// "v25.0.3". Docker counts by years since 17.03, and before that by 1.x. Anything else is a
// custom build.
func cdiSupport(version string) support {
	r, ok := runtime.ParseRelease(version)
	switch {
	case !ok || r.Major < 1 || r.Major > 1 && r.Major < 17:
		return unknown
	case !r.AtLeast(25, 0):
		return none
	case !r.AtLeast(28, 2):
		return flagged
	}
	return onDefault
}
