package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// log is the buffer in which kernels record bad words (struct log of memtest.cu). It lies
// in the host's memory, since the device's memory is under test.
type log struct{ host *driver.Host }

const (
	logHead  = 8  // bytes: the number of entries and the capacity
	logEntry = 16 // address, want, got
	logRoom  = 4096
)

func newLog(d *driver.Device) (*log, error) {
	host, err := d.AllocHost(logHead + logEntry*logRoom)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(host.Bytes()[4:], logRoom)
	return &log{host}, nil
}

// drain empties the log and calls record for each word in it.
func (l *log) drain(record func(address uint64, want, got uint32)) {
	b := l.host.Bytes()
	for i := range min(int(binary.LittleEndian.Uint32(b)), logRoom) {
		e := b[logHead+logEntry*i:]
		record(binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint32(e[8:]), binary.LittleEndian.Uint32(e[12:]))
	}
	binary.LittleEndian.PutUint32(b, 0)
}

// word is a bad word.
type word struct {
	want, got uint32
	pattern   string // that found it first
	bits      uint32 // that ever differed
}

// bad collects the bad words of a run by address.
type bad struct{ words map[uint64]*word }

func newBad() *bad { return &bad{map[uint64]*word{}} }

// full reports whether enough bad words were found to end the test.
func (b *bad) full() bool { return len(b.words) >= logRoom }

// recorder returns a function that records the bad words of a pattern.
func (b *bad) recorder(pattern string) func(address uint64, want, got uint32) {
	return func(address uint64, want, got uint32) {
		w := b.words[address]
		if w == nil {
			w = &word{want: want, got: got, pattern: pattern}
			b.words[address] = w
		}
		w.bits |= want ^ got
	}
}

// err returns an error that names the bad words with the lowest addresses, or nil where
// there are none.
func (b *bad) err(a *area) error {
	if len(b.words) == 0 {
		return nil
	}
	wrong := &sample.WrongError{Of: "words", Count: len(b.words)}
	for _, address := range slices.Sorted(maps.Keys(b.words)) {
		if len(wrong.Wrong) == sample.MaxListed {
			break
		}
		w := b.words[address]
		entry := sample.Wrong{Address: fmt.Sprintf("%#x", address), Offset: a.offset(address), Pattern: w.pattern,
			Want: fmt.Sprintf("0x%08x", w.want), Got: fmt.Sprintf("0x%08x", w.got)}
		for rest := w.bits; rest != 0; rest &= rest - 1 {
			entry.Bits = append(entry.Bits, bits.TrailingZeros32(rest))
		}
		wrong.Wrong = append(wrong.Wrong, entry)
	}
	first := wrong.Wrong[0]
	wrong.What = fmt.Sprintf("the word at %s, %d bytes into the %d tested, of %s, bits %v,", first.Address, first.Offset, a.size, first.Pattern, first.Bits)
	return wrong
}
