package main

import (
	"math"
	"math/bits"
)

// lanes is the size of a warp. Thread t computes the same as lane t % lanes.
const lanes = 32

// Inputs of fp32.cu: how far a pendulum moves in a step, and how far apart pendulums start.
const (
	chains         = 8
	step   float32 = 0.7
	spread float32 = 1.0 / 256
)

// fp32Reference returns the result of each lane of fp32.cu after a number of steps.
func fp32Reference(steps int) [lanes]uint32 {
	var out [lanes]uint32
	for lane := range out {
		for k := range chains {
			x, y := swing(float32(lane*chains+k+1)*spread, 1, steps)
			out[lane] = bits.RotateLeft32(out[lane], 1) ^ math.Float32bits(x) ^ math.Float32bits(y)<<16
		}
	}
	return out
}

// swing moves a pendulum by a number of steps.
func swing(x, y float32, steps int) (float32, float32) {
	for range steps {
		x = fma32(y, step, x)
		y = fma32(x, -step, y)
	}
	return x, y
}

// fma32 returns a·b + c rounded once. The product is exact in a float64; the sum is
// rounded to odd there, so that rounding it again to a float32 cannot err
// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
func fma32(a, b, c float32) float32 {
	p, d := float64(a)*float64(b), float64(c)
	sum := p + d
	part := sum - p
	lost := (p - (sum - part)) + (d - part) // the sum's rounding error (Knuth's TwoSum)
	if n := math.Float64bits(sum); lost != 0 && n&1 == 0 {
		if (lost > 0) == (sum > 0) {
			n++
		} else {
			n--
		}
		sum = math.Float64frombits(n)
	}
	return float32(sum)
}

// A warp of bf16_sm80.cu multiplies rows fragments of A with columns of B.
const (
	rows    = 2
	columns = 4
)

// number returns the small whole number that bf16_sm80.cu writes at a place.
func number(place uint32) int {
	return min(int(place*2654435761>>29)-3, 3)
}

// bf16Reference returns the result of each lane of bf16_sm80.cu after a number of steps.
// For the elements that each lane holds see the PTX ISA, "Matrix fragments for
// mma.m16n8k16 with floating point type".
func bf16Reference(steps int) [lanes]uint32 {
	var a [rows][16][16]int
	var b [columns][16][8]int
	for lane := range lanes {
		group, pair := lane/4, lane%4*2
		for i := range 8 { // a register holds two elements
			row, column := group+i/2%2*8, pair+i%2+i/4*8
			for r := range rows {
				a[r][row][column] = number(uint32(2*((r*4+i/2)*lanes+lane) + i%2))
			}
		}
		for i := range 4 {
			for c := range columns {
				b[c][pair+i%2+i/2*8][group] = number(uint32(2*((rows*4+c*2+i/2)*lanes+lane) + i%2))
			}
		}
	}
	var out [lanes]uint32
	for lane := range out {
		for tile := range rows * columns {
			for i := range 4 {
				row, column := lane/4+i/2*8, lane%4*2+i%2
				sum := 0
				for k := range 16 {
					sum += a[tile/columns][row][k] * b[tile%columns][k][column]
				}
				out[lane] = bits.RotateLeft32(out[lane], 1) ^ math.Float32bits(float32(sum*steps))
			}
		}
	}
	return out
}
