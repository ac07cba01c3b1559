package main

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// product is A B as computed on the CPU in double precision.
type product struct {
	rows, columns int
	v             []float64

	// exact: no sum is rounded in any precision. Otherwise the norms of A's rows
	// and B's columns bound the error.
	exact        bool
	k            int
	ofRow, ofCol []float64
}

// referenceProduct computes A B on the CPU. It calls done with the number of rows so far.
func referenceProduct(a, b matrix, exact bool, done func(rows int)) *product {
	p := &product{rows: a.rows, columns: b.columns, v: make([]float64, a.rows*b.columns), exact: exact, k: a.columns,
		ofRow: norms(a), ofCol: norms(b.transposed())}
	wide := make([]float64, len(b.v))
	for i, v := range b.v {
		wide[i] = float64(v)
	}
	const slab = 256
	for from := 0; from < a.rows; from += slab {
		done(from)
		p.computeRows(a, wide, from, min(from+slab, a.rows))
	}
	return p
}

// computeRows computes some rows on all of the CPU's cores.
func (p *product) computeRows(a matrix, b []float64, from, to int) {
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for i := from + w; i < to; i += workers {
				row := p.v[i*p.columns:][:p.columns]
				for l, x := range a.v[i*a.columns:][:a.columns] {
					x := float64(x)
					for j, y := range b[l*p.columns:][:p.columns] {
						row[j] += x * y
					}
				}
			}
		})
	}
	wait.Wait()
}

// norms returns the Euclidean norms of a matrix's rows.
func norms(m matrix) []float64 {
	out := make([]float64, m.rows)
	for i := range out {
		for _, v := range m.v[i*m.columns:][:m.columns] {
			out[i] += float64(v) * float64(v)
		}
		out[i] = math.Sqrt(out[i])
	}
	return out
}

// bound returns how far an element of a type may differ from the reference by rounding.
//
// Every addition of k is off by at most u of the partial sum, which is at most
// S = Σ|a||b|; that makes k u / (1 - k u) S (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1), and S is at most the product of the norms.
// fp32 rounds to nearest in each fused multiply-add: u is 2^-24. The products of
// bf16 are exact, but tensor cores add in an order of their own, may cut instead of
// round (u is 2^-23), and once more as they align what they add: 2 k additions
// (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores). The
// last factor covers the error of double precision itself.
func (p *product) bound(kind string, row, column int) float64 {
	if p.exact {
		return 0
	}
	ku := float64(p.k) * 0x1p-24
	if kind == bf16 {
		ku = 2 * float64(p.k) * 0x1p-23
	}
	return ku / (1 - ku) * p.ofRow[row] * p.ofCol[column] * (1 + 1e-6)
}

// verify compares every element of a product whose rows are width numbers apart. It
// returns the largest error as a fraction of its bound.
func (p *product) verify(kind string, got []float32, width int) (float64, error) {
	wrong := sample.Elements{What: kind + " element"}
	worst := 0.0
	for i := range p.rows {
		for j := range p.columns {
			want, is := p.v[i*p.columns+j], got[i*width+j]
			bound := p.bound(kind, i, j)
			off := math.Abs(float64(is) - want)
			switch {
			case off <= bound: // not so for NaN
				if bound > 0 {
					worst = max(worst, off/bound)
				}
			case p.exact:
				wrong.Add(want, is, i, j)
			default:
				wrong.Add(fmt.Sprintf("%.9g ± %.2g", want, bound), is, i, j)
			}
		}
	}
	return worst, wrong.Err()
}
