package main

import (
	"math"
	"math/rand/v2"
)

const (
	threads   = 256 // of a block; reduction.cu has the same number
	maxBlocks = 512 // of a launch
)

// operation is a binary operation with its neutral element none.
type operation struct {
	kernel string
	none   float32
	of     func(a, b float32) float32
}

var operations = []operation{
	{"sum", 0, func(a, b float32) float32 { return a + b }},
	{"maximum", float32(math.Inf(-1)), func(a, b float32) float32 {
		if b > a {
			return b
		}
		return a
	}},
}

func blocks(n int) int { return min((n+threads-1)/threads, maxBlocks) }

// reference returns each block's result. It computes in the kernel's order: rounding is
// then the same, and every bit can be compared.
func (o operation) reference(in []float32, blocks int) []float32 {
	all := blocks * threads
	own := make([]float32, all)
	for i := range own {
		own[i] = o.none
	}
	for i, v := range in {
		own[i%all] = o.of(own[i%all], v)
	}
	out := make([]float32, blocks)
	for b := range out {
		part := own[b*threads:][:threads]
		for half := threads / 2; half > 0; half /= 2 {
			for i := range half {
				part[i] = o.of(part[i], part[i+half])
			}
		}
		out[b] = part[0]
	}
	return out
}

// numbers returns n numbers between -1 and 1, the same in each run.
func numbers(n int) []float32 {
	source := rand.New(rand.NewPCG(1, 0))
	v := make([]float32, n)
	for i := range v {
		v[i] = 2*source.Float32() - 1
	}
	return v
}

// sizes returns n, and below it the sizes at which a kernel's bounds may be wrong: one element, part of a
// block, a block and one more, 16 blocks less one element, and one more than the largest grid has threads,
// so that its first thread takes two.
func sizes(n int) []int {
	var all []int
	for _, size := range []int{1, 33, threads + 1, 4095, threads*maxBlocks + 1} {
		if size < n {
			all = append(all, size)
		}
	}
	return append(all, n)
}
