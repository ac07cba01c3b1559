// Package packed describes how files are packed into a kit.
//
// A kit's file ends with a tar archive, compressed with xz, the archive's size, and Magic. Each file in the archive
// has addresses in its code changed by Encode, so that it becomes smaller.
package packed

import (
	"bytes"
	"encoding/binary"
)

// magic begins a program (elf(5)). Neither an address nor what comes before one is in it.
var magic = []byte("\x7fELF")

// The last bytes of the file are the size of the compressed archive before them, a little-endian uint64, and Magic.
const (
	Magic = "gpu-kit\n"
	Size  = 8 + len(Magic)
)

// Encode makes the relative addresses in amd64 code absolute: a function or a value then has the same bytes
// wherever it is used. Each file can be encoded, whatever it holds.
func Encode(file []byte) {
	convert(file, func(address, at, size int32) int32 {
		switch {
		case address >= -at && address < size-at:
			return address + at
		case address >= size-at && address < size:
			return address - size
		}
		return address
	})
}

// Decode undoes Encode.
func Decode(file []byte) {
	convert(file, func(address, at, size int32) int32 {
		switch {
		case address >= 0 && address < size:
			return address - at
		case address >= -at && address < 0:
			return address + size
		}
		return address
	})
}

// convert changes the addresses of calls, and those that are loaded.
func convert(file []byte, change func(address, at, size int32) int32) {
	const length = 4
	begin := 0 // of the program: the same one in two images has the same bytes
	for i := 0; i+length < len(file); i++ {
		if bytes.HasPrefix(file[i:], magic) {
			begin = i
		}
		isCall := file[i] == 0xe8
		isLoad := i >= 2 && file[i]&0xc7 == 0x05 && file[i-1] == 0x8d && file[i-2]&0xfb == 0x48 // lea address(%rip), register
		if !isCall && !isLoad {
			continue
		}
		at := file[i+1 : i+1+length]
		address := change(int32(binary.LittleEndian.Uint32(at)), int32(i-begin), int32(len(file)))
		binary.LittleEndian.PutUint32(at, uint32(address))
		i += length
	}
}
