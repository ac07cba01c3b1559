package main

import (
	"encoding/binary"
	"sync"
)

// word is the value at index i of a buffer that is filled with a seed. word of bandwidth.cu
// computes the same on the GPU. Every bit of i and of the seed takes part, so a word that was
// copied to the wrong place is noticed.
func word(i uint64, seed uint32) uint32 {
	v := (uint32(i) ^ uint32(i>>32)) + seed*0x9e3779b9
	v = (v ^ v>>16) * 0x85ebca6b
	v = (v ^ v>>13) * 0xc2b2ae35
	return v ^ v>>16
}

// whole returns a whole number below 65536, so that a float32 holds the sum of up to 256 exactly.
func whole(i uint64, seed uint32) float32 { return float32(word(i, seed) >> 16) }

// parts is the number of parts into which the host splits its work.
const parts = 8

// split calls work for parts of n words concurrently, and waits for all of them.
func split(n int, work func(from, to int)) {
	var wait sync.WaitGroup
	for part := range parts {
		wait.Go(func() { work(n*part/parts, n*(part+1)/parts) })
	}
	wait.Wait()
}

// fill writes the words of a seed.
func fill(to []byte, seed uint32) {
	split(len(to)/4, func(from, end int) {
		for i := from; i < end; i++ {
			binary.LittleEndian.PutUint32(to[4*i:], word(uint64(i), seed))
		}
	})
}

// check counts the words that are not the seed's and returns the index of the first; it is
// valid only if there are any.
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
