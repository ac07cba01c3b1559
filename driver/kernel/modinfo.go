package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Limits on the size of a module. NVIDIA's largest has 100 MB with symbols.
const (
	maxModule  = 512 << 20
	maxModinfo = 4 << 20
	maxNote    = 64 << 10
)

// Info holds the fields of a module that modinfo(8) prints.
type Info struct {
	Name        string // "nvidia_uvm"
	Description string
	Version     string            // MODULE_VERSION: "580.95.05"
	SrcVersion  string            // a hash of its sources
	BuildID     string            // of .note.gnu.build-id, in hexadecimal
	Vermagic    string            // "6.1.0-56-amd64 SMP preempt mod_unload modversions "
	License     string            // "NVIDIA", "Dual MIT/GPL"
	Depends     []string          // names of modules that have to be loaded first
	SoftBefore  []string          // names of modules that are loaded first if they exist
	Firmware    []string          // paths below a firmware directory
	Params      map[string]string // type by name: "int", "charp"; "": unknown
	Machine     elf.Machine       // processor that it was compiled for
	Signature   *Signature        // nil: it is not signed
}

// ErrNoModule is returned, wrapped, for a file that is not a kernel module.
var ErrNoModule = errors.New("not a kernel module")

// Release returns the kernel release that the module was built for.
func (i Info) Release() string {
	release, _, _ := strings.Cut(i.Vermagic, " ")
	return release
}

// IsOpen reports whether the module is one of NVIDIA's open kernel modules rather than a
// proprietary one. Only the licence differs.
func (i Info) IsOpen() bool { return strings.Contains(i.License, "GPL") }

// Simulated reports whether the module declares itself a simulation without GPU.
func (i Info) Simulated() bool { return strings.Contains(i.Description, "SIMULATED") }

// ReadInfo parses a module's uncompressed ELF file of size bytes, and an appended signature.
func ReadInfo(r io.ReaderAt, size int64) (Info, error) {
	if size > maxModule {
		return Info{}, fmt.Errorf("%w: it has %d bytes, more than %d", ErrNoModule, size, int64(maxModule))
	}
	f, err := elf.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrNoModule, err)
	}
	section := f.Section(".modinfo")
	if f.Type != elf.ET_REL || section == nil {
		return Info{}, fmt.Errorf("%w: it has no section .modinfo", ErrNoModule)
	}
	text, err := readSection(section, maxModinfo)
	if err != nil {
		return Info{}, err
	}
	i := parseModinfo(text)
	if i.Vermagic == "" {
		return Info{}, fmt.Errorf("%w: it does not name the kernel for which it was built (vermagic)", ErrNoModule)
	}
	i.Machine = f.Machine
	if note := f.Section(".note.gnu.build-id"); note != nil {
		data, err := readSection(note, maxNote)
		if err != nil {
			return Info{}, err
		}
		i.BuildID = parseBuildID(data, f.ByteOrder.Uint32)
	}
	i.Signature, err = readSignature(r, size)
	return i, err
}

func readSection(s *elf.Section, limit uint64) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 || s.Size > limit {
		return nil, fmt.Errorf("%w: section %s has %d bytes; at most %d, uncompressed, are read", ErrNoModule, s.Name, s.Size, limit)
	}
	data, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: section %s: %w", ErrNoModule, s.Name, err)
	}
	return data, nil
}

// parseModinfo parses zero-terminated "key=value" strings.
func parseModinfo(text []byte) Info {
	i := Info{Params: map[string]string{}}
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		key, value, ok := strings.Cut(string(entry), "=")
		if !ok {
			continue
		}
		switch key {
		case "name":
			i.Name = NormalizeName(value)
		case "description":
			i.Description = value
		case "version":
			i.Version = value
		case "srcversion":
			i.SrcVersion = value
		case "vermagic":
			i.Vermagic = value
		case "license":
			i.License = value
		case "firmware":
			i.Firmware = append(i.Firmware, value)
		case "depends":
			i.Depends = append(i.Depends, splitNames(value, ",")...)
		case "softdep":
			i.SoftBefore = append(i.SoftBefore, parseSoftdep(value)...)
		case "parm":
			name, _, _ := strings.Cut(value, ":")
			if _, known := i.Params[name]; !known {
				i.Params[name] = ""
			}
		case "parmtype":
			name, kind, _ := strings.Cut(value, ":")
			i.Params[name] = kind
		}
	}
	return i
}

// splitNames returns the module names in a list, in the kernel's spelling.
func splitNames(list, separator string) []string {
	var names []string
	for name := range strings.SplitSeq(list, separator) {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, NormalizeName(name))
		}
	}
	return names
}

// parseSoftdep returns the modules to load first: those after "pre:" and not after "post:"
// (modprobe.d(5)).
func parseSoftdep(s string) []string {
	var before []string
	after := false
	for word := range strings.FieldsSeq(s) {
		switch {
		case word == "pre:" || word == "post:":
			after = word == "post:"
		case !after:
			before = append(before, NormalizeName(word))
		}
	}
	return before
}

// parseBuildID returns the descriptor of the note GNU, NT_GNU_BUILD_ID (elf(5)): the
// sizes of name and descriptor, the type, then both padded to four bytes.
func parseBuildID(note []byte, number func([]byte) uint32) string {
	const header, buildID = 12, 3
	for len(note) >= header {
		name, desc, kind := uint64(number(note)), uint64(number(note[4:])), number(note[8:])
		note = note[header:]
		at, end := align4(name), align4(name)+align4(desc)
		if at+desc > uint64(len(note)) {
			return ""
		}
		if kind == buildID && slices.Equal(note[:name], []byte("GNU\x00")) {
			return hex.EncodeToString(note[at : at+desc])
		}
		if end > uint64(len(note)) {
			return ""
		}
		note = note[end:]
	}
	return ""
}

func align4(n uint64) uint64 { return (n + 3) &^ 3 }
