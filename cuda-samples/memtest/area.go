package main

import (
	"errors"
	"fmt"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

const (
	grain        = 512      // bytes; the size of a chunk is a multiple of it
	largestChunk = 1 << 30  // bytes
	leastChunk   = 16 << 20 // smaller ones are not worth the search for room
)

// area is the memory under test: a sequence of chunks.
type area struct {
	chunks []*driver.Memory
	size   uint64 // bytes of all
}

// allocate allocates want bytes, or as many as are free.
func allocate(d *driver.Device, want uint64) (*area, error) {
	a := new(area)
	chunk := uint64(largestChunk)
	for a.size < want {
		size := min(chunk, want-a.size) / grain * grain
		if size == 0 {
			break
		}
		m, err := d.Alloc(size)
		if e, ok := errors.AsType[*driver.Error](err); ok && e.Code == driver.OutOfMemory && chunk > leastChunk {
			chunk /= 2
			continue
		} else if ok && e.Code == driver.OutOfMemory && a.size > 0 {
			break
		}
		if err != nil {
			a.free()
			return nil, err
		}
		a.chunks, a.size = append(a.chunks, m), a.size+size
	}
	if a.size == 0 {
		return nil, fmt.Errorf("no memory to test: %d bytes are too few", want)
	}
	return a, nil
}

// free frees all chunks. It ignores errors: after a fault every call returns the fault's error.
func (a *area) free() {
	for _, m := range a.chunks {
		_ = m.Free()
	}
}

// offset returns an address's offset in the area, in bytes.
func (a *area) offset(address uint64) uint64 {
	before := uint64(0)
	for _, m := range a.chunks {
		if address-m.Address < m.Size {
			return before + address - m.Address
		}
		before += m.Size
	}
	return before
}

// each calls visit for every chunk, with the index of its first word.
func (a *area) each(visit func(m *driver.Memory, first uint64) error) error {
	first := uint64(0)
	for _, m := range a.chunks {
		if err := visit(m, first); err != nil {
			return err
		}
		first += m.Size / 4
	}
	return nil
}
