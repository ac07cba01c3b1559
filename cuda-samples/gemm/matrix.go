package main

import (
	"math"
	"math/rand/v2"
)

// matrix is rows × columns numbers, row after row.
type matrix struct {
	rows, columns int
	v             []float32
}

func newMatrix(rows, columns int) matrix {
	return matrix{rows, columns, make([]float32, rows*columns)}
}

// integers returns a matrix of whole numbers, the same in each run. Each fits bfloat16,
// and a sum of k products is at most 2^22, which float32 holds exactly. So the product of two
// such matrices is the same in any order of summation.
func integers(rows, columns, k int, seed uint64) matrix {
	largest := min(127, int(math.Sqrt(float64(1<<22)/float64(k))))
	source := rand.New(rand.NewPCG(seed, 0))
	m := newMatrix(rows, columns)
	for i := range m.v {
		m.v[i] = float32(source.IntN(2*largest+1) - largest)
	}
	return m
}

// fractions returns a matrix of numbers between -1 and 1, the same in each run.
func fractions(rows, columns int, seed uint64) matrix {
	source := rand.New(rand.NewPCG(seed, 0))
	m := newMatrix(rows, columns)
	for i := range m.v {
		m.v[i] = 2*source.Float32() - 1
	}
	return m
}

// truncate reduces every number to bfloat16, in place: the upper half of its bits. It returns m.
func (m matrix) truncate() matrix {
	for i, v := range m.v {
		m.v[i] = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
	}
	return m
}

// bfloat16 returns the matrix in bfloat16, truncated, and padded with zeros so that its rows are a multiple of
// rowStep and its columns one of columnStep.
func (m matrix) bfloat16(rowStep, columnStep int) []uint16 {
	width := roundUp(m.columns, columnStep)
	out := make([]uint16, roundUp(m.rows, rowStep)*width)
	for i := range m.rows {
		for j := range m.columns {
			out[i*width+j] = uint16(math.Float32bits(m.v[i*m.columns+j]) >> 16)
		}
	}
	return out
}

func (m matrix) transposed() matrix {
	t := newMatrix(m.columns, m.rows)
	for i := range m.rows {
		for j := range m.columns {
			t.v[j*m.rows+i] = m.v[i*m.columns+j]
		}
	}
	return t
}

// roundUp rounds n up to a multiple of step.
func roundUp(n, step int) int { return (n + step - 1) / step * step }
