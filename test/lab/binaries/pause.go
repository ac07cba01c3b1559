package binaries

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"
)

// PauseName is the name of the sandbox image of pods.
const PauseName = "gpuready.test/pause:1"

// PauseArchive is the file name of its archive in a cluster's folder.
const PauseArchive = "pause.tar"

// PauseImage returns the sandbox image of pods: a program of a few instructions that waits, so that
// the pod's namespaces have an owner.
func PauseImage() (Image, error) {
	program, err := WrapCode(waits[runtime.GOARCH])
	if err != nil {
		return Image{}, fmt.Errorf("a program that waits: %w", err)
	}
	return Image{Name: PauseName, Files: map[string][]byte{"/pause": program}, Entrypoint: []string{"/pause"}}, nil
}

// waits holds, for each architecture, a loop around a system call that sleeps.
var waits = map[string][]byte{
	"amd64": {
		0xb8, 0x22, 0x00, 0x00, 0x00, // mov  $34, %eax   pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp  the beginning
	},
	"arm64": {
		0x00, 0x00, 0x80, 0xd2, // mov x0, #0
		0x01, 0x00, 0x80, 0xd2, // mov x1, #0
		0x02, 0x00, 0x80, 0xd2, // mov x2, #0
		0x03, 0x00, 0x80, 0xd2, // mov x3, #0
		0x28, 0x09, 0x80, 0xd2, // mov x8, #73  ppoll
		0x01, 0x00, 0x00, 0xd4, // svc #0
		0xfa, 0xff, 0xff, 0x17, // b   the beginning
	},
}

// WrapCode wraps machine code in the smallest static ELF executable.
func WrapCode(code []byte) ([]byte, error) {
	if len(code) == 0 {
		return nil, fmt.Errorf("nobody has written one for %s", runtime.GOARCH)
	}
	const base, headers = 0x400000, 64 + 56
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}
	size := uint64(headers + len(code))
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer
	for _, part := range []any{header, segment, code} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
