package cudatest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The interpreter's speed is told in PTX instructions per second of one core:
// one block runs on one core.
func benchmark(b *testing.B, kernel string, s shape, arguments func(d *device) []any) {
	d := open(b, "h100-sxm", "--gpus", "1")
	f := d.mustKernel(compilers(b)["clang-14"], kernel)
	args := arguments(d)
	before := d.instructions()
	for b.Loop() {
		require.NoError(b, d.launch(f, s, args...))
	}
	b.ReportMetric(float64(d.instructions()-before)/b.Elapsed().Seconds()/1e6, "Mptx/s/core")
}

func BenchmarkSaxpy(b *testing.B) {
	const n = 1 << 20
	benchmark(b, "saxpy", shape{gx: 1, bx: 1024}, func(d *device) []any {
		return []any{new(float32(2)), put(d, make([]float32, n)), put(d, make([]float32, n)), new(int32(n))}
	})
}

func BenchmarkPattern(b *testing.B) {
	const n = 1 << 18
	benchmark(b, "pattern", shape{gx: 1, bx: 1024}, func(d *device) []any {
		return []any{put(d, make([]uint64, n)), new(uint64(1)), new(int32(n))}
	})
}

func BenchmarkGemm(b *testing.B) {
	const n = 1024 // one tile of the result
	benchmark(b, "gemm", shape{gx: 1, bx: 16, by: 16}, func(d *device) []any {
		m := put(d, make([]float32, n*n))
		return []any{m, m, put(d, make([]float32, n*n)), new(int32(n))}
	})
}

func BenchmarkDivergent(b *testing.B) {
	const n = 1024
	benchmark(b, "collatz", shape{gx: 1, bx: n}, func(d *device) []any {
		return []any{put(d, make1(n, func(i int) uint32 { return uint32(i) + 1 })), put(d, make([]uint32, n)), new(int32(n))}
	})
}

// The benchmark measures a short launch.
func BenchmarkVectorAdd50000(b *testing.B) {
	const n = 50000
	d := open(b, "h100-sxm", "--gpus", "1")
	f := d.mustKernel(compilers(b)["clang-14"], "vectoradd")
	x := put(d, make([]float32, n))
	for b.Loop() {
		require.NoError(b, d.launch(f, shape{gx: (n + 255) / 256, bx: 256}, x, x, x, new(int32(n))))
	}
}
