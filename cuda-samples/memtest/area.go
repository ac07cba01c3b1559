package main

import (
	"errors"
	"fmt"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

const (
	grain        = 512      // bytes that a chunk is a multiple of
	largestChunk = 1 << 30  // bytes
	leastChunk   = 16 << 20 // smaller ones are not worth the search for room
)

// area is the memory that is tested: chunks, one behind the other.
type area struct {
	chunks []*driver.Memory
	size   uint64 // bytes of all
}

// take allocates so many bytes, or as many as there are.
func take(d *driver.Device, want uint64) (*area, error) {
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

// free gives all back. After a fault every call answers the same error: that of the fault is enough.
func (a *area) free() {
	for _, m := range a.chunks {
		_ = m.Free()
	}
}

// offset is how far an address lies from the start of all that is tested.
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

// each calls what for every chunk, with the index of its first word.
func (a *area) each(what func(m *driver.Memory, first uint64) error) error {
	first := uint64(0)
	for _, m := range a.chunks {
		if err := what(m, first); err != nil {
			return err
		}
		first += m.Size / 4
	}
	return nil
}
