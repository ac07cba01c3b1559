package library

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

const (
	magicOld = "ld.so-1.7.0"
	magicNew = "glibc-ld.so.cache1.1"

	headerOld = 16
	entryOld  = 12
	headerNew = 48
	entryNew  = 24

	littleEndian   = 2 // cache_file_new_flags_endian_little
	extensionMagic = 0xeaa42174
	tagGenerator   = 0
	tagHWCaps      = 1
	hwcapExtension = 1 << 62 // DL_CACHE_HWCAP_EXTENSION: the low half indexes HWCaps

	flagELF   = 0x0003 // FLAG_ELF_LIBC6
	flagX8664 = 0x0300 // FLAG_X8664_LIB64
	flagARM64 = 0x0a00 // FLAG_AARCH64_LIB64

	generator = "gpu-cdi-hook"
	maxName   = 4096 // PATH_MAX
	maxHWCaps = 1024

	// A name is usually the end of its path, and shared by variants of a library. A file
	// with more sharing would become many times as long.
	maxOverlap = 8
)

// Cache is the content of the cache of glibc's dynamic loader, /etc/ld.so.cache. Its format is that
// of glibc's sysdeps/generic/dl-cache.h, "new format":
//
//	header  48 bytes: magic, version, number of entries, size of strings, extension
//	entries 24 bytes each: flags, offsets of name and path, hwcap
//	strings
//	extension: the writer, names of the glibc-hwcaps subdirectories
//
// The entries are sorted for the loader's binary search (see compare). glibc before 2.32
// wrote an older format in front of it, but its loaders accept a file without that (since
// 2.2).
type Cache struct {
	Entries []Entry
	HWCaps  []string // names of glibc-hwcaps subdirectories, by number
}

// Entry is one name under which a library can be loaded.
type Entry struct {
	Name  string // "libcuda.so.1"
	Path  string // absolute, in the container
	Flags int32  // kind of library
	HWCap uint64 // required processor features, 0 for none
}

var errFormat = errors.New("not an ld.so.cache that this program knows")

// ParseCache parses the content of an ld.so.cache. Any result can be written with Bytes.
func ParseCache(data []byte) (Cache, error) {
	compat := bytes.HasPrefix(data, []byte(magicOld))
	if compat {
		// The new header follows the old entries, aligned.
		if len(data) < headerOld {
			return Cache{}, errFormat
		}
		n := uint64(binary.LittleEndian.Uint32(data[12:]))
		at := (headerOld + n*entryOld + 7) &^ 7
		if at > uint64(len(data)) {
			return Cache{}, errFormat
		}
		data = data[at:]
	}
	if len(data) < headerNew || !bytes.HasPrefix(data, []byte(magicNew)) {
		return Cache{}, errFormat
	}
	n := uint64(binary.LittleEndian.Uint32(data[20:]))
	if order := data[28]; order != 0 && order != littleEndian || n > uint64(len(data)-headerNew)/entryNew {
		return Cache{}, errFormat
	}
	c := Cache{Entries: make([]Entry, 0, n)}
	all := string(data) // its parts then need no memory of their own
	if !compat {        // offsets count from the start of the file there
		c.HWCaps = parseHWCaps(all, data, binary.LittleEndian.Uint32(data[32:]))
	}
	size := 0
	for i := range n {
		raw := data[headerNew+i*entryNew:]
		name, ok1 := text(all, binary.LittleEndian.Uint32(raw[4:]))
		path, ok2 := text(all, binary.LittleEndian.Uint32(raw[8:]))
		if !ok1 || !ok2 {
			return Cache{}, fmt.Errorf("%w: entry %d of %d points outside", errFormat, i, n)
		}
		if size += len(name) + len(path); size > maxOverlap*len(data) {
			return Cache{}, fmt.Errorf("%w: its strings overlap", errFormat)
		}
		e := Entry{Name: name, Path: path, Flags: int32(binary.LittleEndian.Uint32(raw)), HWCap: binary.LittleEndian.Uint64(raw[16:])}
		if e.HWCap&hwcapExtension != 0 && uint64(uint32(e.HWCap)) >= uint64(len(c.HWCaps)) {
			continue // the loader ignores it as well
		}
		c.Entries = append(c.Entries, e)
	}
	return c, nil
}

// text returns the NUL-terminated string at an offset.
func text(data string, at uint32) (string, bool) {
	if uint64(at) >= uint64(len(data)) {
		return "", false
	}
	rest := data[at:]
	end := strings.IndexByte(rest[:min(len(rest), maxName)], 0)
	if end < 0 {
		return "", false
	}
	return rest[:end], true
}

// parseHWCaps returns nil for a damaged extension, which the loader ignores too.
func parseHWCaps(all string, data []byte, at uint32) []string {
	if at == 0 || at%4 != 0 || uint64(at)+8 > uint64(len(data)) {
		return nil
	}
	ext := data[at:]
	if binary.LittleEndian.Uint32(ext) != extensionMagic {
		return nil
	}
	n := binary.LittleEndian.Uint32(ext[4:])
	for i := range min(uint64(n), uint64(len(ext)-8)/16) {
		section := ext[8+i*16:]
		offset, size := binary.LittleEndian.Uint32(section[8:]), binary.LittleEndian.Uint32(section[12:])
		if binary.LittleEndian.Uint32(section) != tagHWCaps {
			continue
		}
		if uint64(offset)+uint64(size) > uint64(len(data)) || size/4 > maxHWCaps {
			return nil
		}
		var names []string
		for j := uint32(0); j+4 <= size; j += 4 {
			name, ok := text(all, binary.LittleEndian.Uint32(data[offset+j:]))
			if !ok {
				return nil
			}
			names = append(names, name)
		}
		return names
	}
	return nil
}

// Bytes returns the content of the file. Equal caches have equal content.
func (c Cache) Bytes() []byte {
	entries := c.Entries
	if !slices.IsSortedFunc(entries, order) { // an image's own cache is sorted, and Add keeps it sorted
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, order)
	}
	base, size := headerNew+len(entries)*entryNew, 0
	for _, e := range entries {
		size += len(e.Path) + len(e.Name) + 2
	}
	out := make([]byte, base, base+size+1024)
	put := func(s string) uint32 {
		at := uint32(len(out))
		out = append(append(out, s...), 0)
		return at
	}
	for i, e := range entries {
		path := put(e.Path)
		var name uint32
		if strings.HasSuffix(e.Path, e.Name) { // usually, and then one string serves for both
			name = path + uint32(len(e.Path)-len(e.Name))
		} else {
			name = put(e.Name)
		}
		raw := out[headerNew+i*entryNew:]
		binary.LittleEndian.PutUint32(raw, uint32(e.Flags))
		binary.LittleEndian.PutUint32(raw[4:], name)
		binary.LittleEndian.PutUint32(raw[8:], path)
		binary.LittleEndian.PutUint64(raw[16:], e.HWCap)
	}
	hwcaps := make([]byte, 0, 4*len(c.HWCaps))
	for _, name := range c.HWCaps {
		hwcaps = binary.LittleEndian.AppendUint32(hwcaps, put(name))
	}
	copy(out, magicNew)
	binary.LittleEndian.PutUint32(out[20:], uint32(len(entries)))
	binary.LittleEndian.PutUint32(out[24:], uint32(len(out)-base))
	out[28] = littleEndian
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	binary.LittleEndian.PutUint32(out[32:], uint32(len(out)))
	return append(out, extension(uint32(len(out)), hwcaps)...)
}

func extension(at uint32, hwcaps []byte) []byte {
	le := binary.LittleEndian
	sections := uint32(1)
	if len(hwcaps) > 0 {
		sections++
	}
	data := at + 8 + 16*sections
	out := le.AppendUint32(nil, extensionMagic)
	out = le.AppendUint32(out, sections)
	section := func(tag, offset, size uint32) {
		for _, v := range []uint32{tag, 0, offset, size} {
			out = le.AppendUint32(out, v)
		}
	}
	section(tagGenerator, data+uint32(len(hwcaps)), uint32(len(generator)))
	if len(hwcaps) > 0 {
		section(tagHWCaps, data, uint32(len(hwcaps)))
	}
	out = append(out, hwcaps...)
	return append(out, generator...)
}

// order compares entries in the order of a file: descending by name, then by flags. Entries
// that differ in glibc's further criteria keep their order.
func order(a, b Entry) int {
	if r := compare(b.Name, a.Name); r != 0 {
		return r
	}
	return cmp.Compare(b.Flags, a.Flags)
}

// compare is glibc's _dl_cache_libcmp: it compares runs of digits as numbers, which sort
// above everything else.
func compare(a, b string) int {
	i, j := 0, 0
	at := func(s string, i int) byte {
		if i < len(s) {
			return s[i]
		}
		return 0
	}
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	for i < len(a) {
		x, y := at(a, i), at(b, j)
		switch {
		case digit(x) && digit(y):
			var m, n int32 // int in C, with the same overflow
			for ; digit(at(a, i)); i++ {
				m = m*10 + int32(a[i]-'0')
			}
			for ; digit(at(b, j)); j++ {
				n = n*10 + int32(b[j]-'0')
			}
			if m != n {
				return cmp.Compare(m-n, 0)
			}
		case digit(x):
			return 1
		case digit(y):
			return -1
		case x != y:
			return char(x) - char(y)
		default:
			i, j = i+1, j+1
		}
	}
	return char(at(a, i)) - char(at(b, j))
}

// char returns the value of a C char: signed on x86, not on ARM.
func char(c byte) int {
	if runtime.GOARCH == "amd64" {
		return int(int8(c))
	}
	return int(c)
}

// Add adds entries, and replaces those of the same name and kind, since the loader only
// tries the first of two libraries with the same name.
func (c *Cache) Add(entries ...Entry) {
	type key struct {
		name  string
		flags int32
	}
	ours := map[key]bool{}
	var add []Entry
	for _, e := range entries {
		if k := (key{e.Name, e.Flags}); !ours[k] {
			ours[k] = true
			add = append(add, e)
		}
	}
	slices.SortStableFunc(add, order)
	merged := make([]Entry, 0, len(add)+len(c.Entries))
	for _, e := range c.Entries {
		if ours[key{e.Name, e.Flags}] {
			continue
		}
		for len(add) > 0 && order(add[0], e) <= 0 {
			merged, add = append(merged, add[0]), add[1:]
		}
		merged = append(merged, e)
	}
	c.Entries = append(merged, add...)
}
