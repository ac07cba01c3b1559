package rootfs

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"runtime/debug"
	"slices"
	"strings"
)

// Object describes an ELF program or library: what it needs at run time, what it offers, how Go built it.
type Object struct {
	Machine elf.Machine
	Interp  string           // the loader's path; "" for libraries and static programs
	Needed  []string         // names of the libraries that it loads
	Wants   []Version        // symbol versions required of other objects
	Defines []string         // symbol versions defined for other objects
	Go      *debug.BuildInfo // nil: not built by Go
}

// Version is a symbol version that a library must define.
type Version struct {
	Library, Name string
	Symbol        string // one symbol of this version, for messages; "": unknown
}

var elfMagic = []byte(elf.ELFMAG)

// ReadObject reads an ELF file. It returns nil for any other file.
func ReadObject(data []byte) (*Object, error) {
	if !bytes.HasPrefix(data, elfMagic) {
		return nil, nil
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o := &Object{Machine: f.Machine}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			raw := make([]byte, p.Filesz)
			if _, err := p.ReadAt(raw, 0); err != nil {
				return nil, err
			}
			o.Interp = strings.TrimRight(string(raw), "\x00")
		}
	}
	// Errors are left out: a static program has none of the following.
	o.Needed, _ = f.ImportedLibraries()
	symbols, _ := f.ImportedSymbols()
	needs, _ := f.DynamicVersionNeeds()
	for _, library := range needs {
		for _, dep := range library.Needs {
			v := Version{Library: library.Name, Name: dep.Dep}
			if i := slices.IndexFunc(symbols, func(s elf.ImportedSymbol) bool { return s.Library == v.Library && s.Version == v.Name }); i >= 0 {
				v.Symbol = symbols[i].Name
			}
			o.Wants = append(o.Wants, v)
		}
	}
	defines, _ := f.DynamicVersions()
	for _, v := range defines {
		o.Defines = append(o.Defines, v.Name)
	}
	if info, err := buildinfo.Read(bytes.NewReader(data)); err == nil {
		o.Go = info
	}
	return o, nil
}

// Setting returns a build setting of a Go program, such as "-race" or "vcs.revision",
// or "" if it is unknown.
func (o *Object) Setting(key string) string {
	if o == nil || o.Go == nil {
		return ""
	}
	for _, s := range o.Go.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
