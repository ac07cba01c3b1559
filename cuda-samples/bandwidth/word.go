package main

import (
	"encoding/binary"
	"sync"
)

// word is what bandwidth.cu calls so: it depends on every bit of i and of the seed.
func word(i uint64, seed uint32) uint32 {
	v := (uint32(i) ^ uint32(i>>32)) + seed*0x9e3779b9
	v = (v ^ v>>16) * 0x85ebca6b
	v = (v ^ v>>13) * 0xc2b2ae35
	return v ^ v>>16
}

// whole is a whole number below 65536, so that sums of a few are exact.
func whole(i uint64, seed uint32) float32 { return float32(word(i, seed) >> 16) }

// parts is in how many the host splits its work.
const parts = 8

// split calls what for parts of n words, all at once, and waits.
func split(n int, what func(from, to int)) {
	var wait sync.WaitGroup
	for part := range parts {
		wait.Go(func() { what(n*part/parts, n*(part+1)/parts) })
	}
	wait.Wait()
}

// fill writes a seed's words.
func fill(to []byte, seed uint32) {
	split(len(to)/4, func(from, end int) {
		for i := from; i < end; i++ {
			binary.LittleEndian.PutUint32(to[4*i:], word(uint64(i), seed))
		}
	})
}

// check counts the words that are not the seed's, and returns the first one's index.
func check(from []byte, seed uint32) (count, first int) {
	var mu sync.Mutex
	split(len(from)/4, func(at, end int) {
		for i := at; i < end; i++ {
			if binary.LittleEndian.Uint32(from[4*i:]) == word(uint64(i), seed) {
				continue
			}
			mu.Lock()
			if count == 0 || i < first {
				first = i
			}
			count++
			mu.Unlock()
		}
	})
	return count, first
}
