package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// noteSection is the section in which libcuda, since R535, describes its compatibility: an
// ELF note of the vendor with a text in JSON.
const (
	noteSection = ".note.cuda.fwd_compatibility"
	noteName    = "NVIDIA Corporation"
)

// Limits on reading a hostile library. libcuda has about 35 sections.
const (
	maxSections     = 512
	maxSectionNames = 64 << 10 // bytes of section names
	maxNote         = 64 << 10
)

var errELF = errors.New("damaged ELF file")

// note is libcuda's description of its compatibility.
type note struct {
	CUDA   string `json:"CUDA Version"`
	Driver []int  // major versions of the supported kernel modules
}

// readNote returns the note of a library, nil if it has none.
func readNote(root *rootfs.Root, file string) (*note, error) {
	f, err := root.OpenFile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseNote(f)
}

func parseNote(r io.ReaderAt) (*note, error) {
	head, err := piece(r, 0, 64)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if string(head[:6]) != "\x7fELF\x02\x01" { // 64 bits, little endian
		return nil, errors.New("not a library of this architecture")
	}
	size, n, names := le.Uint16(head[58:]), le.Uint16(head[60:]), le.Uint16(head[62:])
	if n == 0 {
		return nil, nil
	}
	if size != 64 || n > maxSections || names >= n {
		return nil, errELF
	}
	table, err := piece(r, le.Uint64(head[40:]), uint64(n)*64)
	if err != nil {
		return nil, err
	}
	section := func(i uint16) []byte { return table[int(i)*64:][:64] }
	text, err := content(r, section(names), maxSectionNames)
	if err != nil {
		return nil, err
	}
	for i := range n {
		s := section(i)
		if le.Uint32(s[4:]) != 7 || nameAt(text, le.Uint32(s)) != noteSection { // SHT_NOTE
			continue
		}
		data, err := content(r, s, maxNote)
		if err != nil {
			return nil, err
		}
		return parseText(data)
	}
	return nil, nil
}

// parseText parses an ELF note: sizes of name and text, type, then name and text, each
// padded to 4 bytes, or to 8 by some linkers.
func parseText(data []byte) (*note, error) {
	if len(data) < 12 {
		return nil, errELF
	}
	nameSize, textSize := uint64(binary.LittleEndian.Uint32(data)), uint64(binary.LittleEndian.Uint32(data[4:]))
	rest := data[12:]
	if nameSize > uint64(len(rest)) || strings.TrimRight(string(rest[:nameSize]), "\x00") != noteName {
		return nil, nil
	}
	start := bytes.IndexByte(rest[nameSize:min(nameSize+8, uint64(len(rest)))], '{')
	if start < 0 {
		return nil, errELF
	}
	rest = rest[nameSize+uint64(start):]
	if textSize > uint64(len(rest)) {
		return nil, errELF
	}
	var n note
	if err := json.Unmarshal(bytes.TrimRight(rest[:textSize], "\x00"), &n); err != nil {
		return nil, errors.Join(errELF, err)
	}
	return &n, nil
}

func content(r io.ReaderAt, section []byte, limit uint64) ([]byte, error) {
	size := binary.LittleEndian.Uint64(section[32:])
	if size > limit {
		return nil, errELF
	}
	return piece(r, binary.LittleEndian.Uint64(section[24:]), size)
}

func nameAt(text []byte, at uint32) string {
	if uint64(at) >= uint64(len(text)) {
		return ""
	}
	name, _, _ := bytes.Cut(text[at:], []byte{0})
	return string(name)
}

func piece(r io.ReaderAt, at, size uint64) ([]byte, error) {
	if at > 1<<62 {
		return nil, errELF
	}
	b := make([]byte, size)
	if n, err := r.ReadAt(b, int64(at)); uint64(n) < size {
		return nil, errors.Join(errELF, err)
	}
	return b, nil
}
