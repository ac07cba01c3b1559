package library

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
)

// Limits on reading an ELF file of a hostile image or driver root.
const (
	maxHeaders = 128     // program headers; libraries have about ten
	maxDynamic = 1 << 16 // bytes; 4096 entries
	maxSoname  = 255     // a file's name
)

// elfMagic begins an ELF file. debug/elf, which has it too, would double the hook's size.
const elfMagic = "\x7fELF"

// errELF means that the file is not a shared library for this machine's loader.
var errELF = errors.New("not a shared library of this architecture")

// kind returns the cache's flags for a 64-bit library of this machine, and the machine in
// its ELF header (e_machine).
func kind() (flags int32, machine uint16) {
	if runtime.GOARCH == "arm64" {
		return flagELF | flagARM64, 183 // EM_AARCH64
	}
	return flagELF | flagX8664, 62 // EM_X86_64
}

// Flags returns the cache's flags for a 64-bit library of this machine.
func Flags() int32 {
	flags, _ := kind()
	return flags
}

// IsForeign reports whether a file starts like an ELF file that programs of this machine cannot load,
// such as a 32-bit library. Other files are not foreign: a simulated driver has some among its
// libraries.
func IsForeign(r io.ReaderAt) bool {
	var head [20]byte // up to e_machine
	n, _ := r.ReadAt(head[:], 0)
	return strings.HasPrefix(string(head[:n]), elfMagic) && !isNative(head[:n])
}

// IsLoadable reports whether a file starts like a library that programs of this machine can load.
func IsLoadable(r io.ReaderAt) bool {
	var head [20]byte
	n, _ := r.ReadAt(head[:], 0)
	return isNative(head[:n])
}

// isNative reports whether the first 20 bytes of a file are those of a 64-bit ELF file of this machine.
func isNative(head []byte) bool {
	_, machine := kind()
	return len(head) == 20 && string(head[:5]) == elfMagic+"\x02" && binary.LittleEndian.Uint16(head[18:]) == machine
}

// Soname returns the DT_SONAME of a shared library, "" if it has none. It reads three small
// pieces of the file; debug/elf reads much more.
func Soname(r io.ReaderAt) (string, error) {
	var head [64]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return "", errELF
	}
	le := binary.LittleEndian
	// Little endian, version 1; ET_DYN; size of a program header.
	if !isNative(head[:20]) || head[5] != 1 || head[6] != 1 || le.Uint16(head[16:]) != 3 || le.Uint16(head[54:]) != 56 {
		return "", errELF
	}
	n := int(le.Uint16(head[56:]))
	if n > maxHeaders {
		return "", errELF
	}
	headers, err := piece(r, le.Uint64(head[32:]), uint64(n)*56)
	if err != nil {
		return "", err
	}
	var dynamic []byte
	for h := headers; len(h) > 0; h = h[56:] {
		if le.Uint32(h) == 2 { // PT_DYNAMIC
			if dynamic, err = piece(r, le.Uint64(h[8:]), min(le.Uint64(h[32:]), maxDynamic)); err != nil {
				return "", err
			}
		}
	}
	var name, table uint64
	var has, hasTable bool
	for d := dynamic; len(d) >= 16; d = d[16:] {
		switch le.Uint64(d) {
		case 0: // DT_NULL: the end
			d = d[:16]
		case 5: // DT_STRTAB
			table, hasTable = le.Uint64(d[8:]), true
		case 14: // DT_SONAME
			name, has = le.Uint64(d[8:]), true
		}
	}
	if dynamic == nil || has && !hasTable {
		return "", errELF
	}
	if !has {
		return "", nil
	}
	for h := headers; len(h) > 0; h = h[56:] { // find the table's offset in the file
		start, size := le.Uint64(h[16:]), le.Uint64(h[32:])
		if le.Uint32(h) != 1 || table < start || table-start >= size || name >= size-(table-start) { // PT_LOAD
			continue
		}
		text := make([]byte, maxSoname+1)
		at := le.Uint64(h[8:]) + table - start + name
		if at > 1<<62 {
			return "", errELF
		}
		m, _ := r.ReadAt(text, int64(at))
		end := bytes.IndexByte(text[:m], 0)
		if end <= 0 || strings.ContainsRune(string(text[:end]), '/') {
			return "", errELF
		}
		return string(text[:end]), nil
	}
	return "", errELF
}

func piece(r io.ReaderAt, at, size uint64) ([]byte, error) {
	if at > 1<<62 {
		return nil, errELF
	}
	b := make([]byte, size)
	if _, err := r.ReadAt(b, int64(at)); err != nil {
		return nil, errELF
	}
	return b, nil
}
