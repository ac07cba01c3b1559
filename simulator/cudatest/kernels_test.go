package cudatest

import (
	"embed"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed kernels/*.ptx
var kernels embed.FS

// compilers are the files of kernels: kernels.cu by each compiler.
func compilers(t testing.TB) map[string]string {
	t.Helper()
	files, err := kernels.ReadDir("kernels")
	require.NoError(t, err)
	all := map[string]string{}
	for _, f := range files {
		text, err := kernels.ReadFile("kernels/" + f.Name())
		require.NoError(t, err)
		all[strings.TrimSuffix(f.Name(), ".ptx")] = string(text)
	}
	require.GreaterOrEqual(t, len(all), 2)
	return all
}

// make1 fills a slice from its index.
func make1[T any](n int, f func(i int) T) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = f(i)
	}
	return v
}

func fma32(a, b, c float32) float32 { return float32(math.FMA(float64(a), float64(b), float64(c))) }

// kernelTests compare each kernel with the same computation in Go.
var kernelTests = map[string]func(d *device, f uintptr){
	"vectoradd": func(d *device, f uintptr) {
		const n = 1000 // not a multiple of the block
		r := rand.New(rand.NewPCG(1, 1))
		a, b := make1(n, func(int) float32 { return r.Float32() }), make1(n, func(int) float32 { return r.Float32() })
		c := put(d, make([]float32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 4, bx: 256}, put(d, a), put(d, b), c, new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) float32 { return a[i] + b[i] }), get[float32](d, c, n))
	},
	"saxpy": func(d *device, f uintptr) {
		const n = 1000
		r := rand.New(rand.NewPCG(2, 1))
		// Integers: a fused and an unfused multiply-add agree, so Go's emulation in double cannot differ.
		x, y := make1(n, func(int) float32 { return float32(r.IntN(1000)) }), make1(n, func(int) float32 { return float32(r.IntN(1000)) })
		out := put(d, y)
		require.NoError(d.t, d.launch(f, shape{gx: 3, bx: 96}, new(float32(2.5)), put(d, x), out, new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) float32 { return fma32(2.5, x[i], y[i]) }), get[float32](d, out, n))
	},
	"reduce": func(d *device, f uintptr) {
		const n, blocks = 1000, 4
		in := make1(n, func(i int) float32 { return float32(i%17) * 0.25 })
		out := put(d, make([]float32, blocks))
		require.NoError(d.t, d.launch(f, shape{gx: blocks, bx: 256}, put(d, in), out, new(int32(n))))
		want := make([]float32, blocks)
		for i, v := range in {
			want[i/256] += v
		}
		require.Equal(d.t, want, get[float32](d, out, blocks))
	},
	"gemm": func(d *device, f uintptr) {
		const n = 48
		r := rand.New(rand.NewPCG(3, 1))
		a, b := make1(n*n, func(int) float32 { return float32(r.IntN(64)) }), make1(n*n, func(int) float32 { return float32(r.IntN(64)) })
		c := put(d, make([]float32, n*n))
		require.NoError(d.t, d.launch(f, shape{gx: n / 16, gy: n / 16, bx: 16, by: 16}, put(d, a), put(d, b), c, new(int32(n))))
		require.Equal(d.t, make1(n*n, func(i int) (sum float32) {
			for k := range n {
				sum = fma32(a[i/n*n+k], b[k*n+i%n], sum)
			}
			return sum
		}), get[float32](d, c, n*n))
	},
	"copy4": func(d *device, f uintptr) {
		const n = 500
		in := make1(4*n, func(i int) uint32 { return uint32(i) * 0x9e3779b9 })
		out := put(d, make([]uint32, 4*n))
		require.NoError(d.t, d.launch(f, shape{gx: 4, bx: 128}, put(d, in), out, new(int32(n))))
		require.Equal(d.t, in, get[uint32](d, out, 4*n))
	},
	"pattern": func(d *device, f uintptr) {
		const n = 777
		out := put(d, make([]uint64, n))
		require.NoError(d.t, d.launch(f, shape{gx: 2, bx: 64}, out, new(uint64(12345)), new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) uint64 {
			v := 12345 + uint64(i)*0x9e3779b97f4a7c15
			v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
			v = (v ^ v>>27) * 0x94d049bb133111eb
			return v ^ v>>31
		}), get[uint64](d, out, n))
	},
	"histogram": func(d *device, f uintptr) {
		const n = 10000
		r := rand.New(rand.NewPCG(4, 1))
		in, want := make1(n, func(int) uint8 { return uint8(r.NormFloat64()*20 + 128) }), make([]uint32, 256)
		for _, v := range in {
			want[v]++
		}
		out := put(d, make([]uint32, 256))
		require.NoError(d.t, d.launch(f, shape{gx: 8, bx: 192}, put(d, in), out, new(int32(n))))
		require.Equal(d.t, want, get[uint32](d, out, 256))
	},
	"scan": func(d *device, f uintptr) {
		const n = 256
		in := make1(n, func(i int) int32 { return int32(i*i%101 - 50) })
		out := put(d, make([]int32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 2, bx: 128}, put(d, in), out))
		sum := int32(0)
		require.Equal(d.t, make1(n, func(i int) int32 {
			if i%32 == 0 {
				sum = 0
			}
			sum += in[i]
			return sum
		}), get[int32](d, out, n))
	},
	"calls": func(d *device, f uintptr) {
		const n = 100
		in := make1(n, func(i int) int32 { return int32(i * 7) })
		out, real := put(d, make([]int32, n)), put(d, make([]float64, n))
		require.NoError(d.t, d.launch(f, shape{gx: 2, bx: 64}, put(d, in), out, real, new(int32(n))))
		gcd := func(a, b int32) int32 {
			for b != 0 {
				a, b = b, a%b
			}
			return a
		}
		fib := []int32{0, 1, 1, 2, 3, 5, 8, 13, 21, 34}
		require.Equal(d.t, make1(n, func(i int) int32 { return gcd(in[i], 36) + fib[in[i]%10] }), get[int32](d, out, n))
		require.Equal(d.t, make1(n, func(i int) float64 { return float64(in[i]) / 3 }), get[float64](d, real, n))
	},
	"collatz": func(d *device, f uintptr) {
		const n = 300
		in := make1(n, func(i int) uint32 { return uint32(i*i) + 1 })
		in[7] = 4000000001 // leaves the loop early
		out := put(d, make([]uint32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 5, bx: 64}, put(d, in), out, new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) (k uint32) {
			for v := in[i]; v != 1; k++ {
				if v&1 == 0 {
					v >>= 1
				} else if v > 1000000000 {
					return math.MaxUint32
				} else {
					v = 3*v + 1
				}
			}
			return k
		}), get[uint32](d, out, n))
	},
	"choices": func(d *device, f uintptr) {
		const n = 200
		in := make1(n, func(i int) int32 { return int32(i*37 - 3000) })
		out := put(d, make([]int32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 4, bx: 64}, put(d, in), out, new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) int32 {
			v := in[i]
			return []int32{v * 3, v + 100, v ^ 0x55, ^v, v << 3, v >> 2, -v, v % 11}[v&7]
		}), get[int32](d, out, n))
	},
	"locals": func(d *device, f uintptr) {
		const n = 150
		in := make1(n, func(i int) int32 { return int32(i * 13) })
		out := put(d, make([]int32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 3, bx: 64}, put(d, in), out, new(int32(n))))
		require.Equal(d.t, make1(n, func(i int) (sum int32) {
			var seen [16]int32
			for k := range int32(16) {
				seen[k] = k * in[i]
			}
			for k := range 16 {
				seen[in[(i+k)%n]&15] += int32(k)
			}
			for _, v := range seen {
				sum = sum*31 + v
			}
			return sum
		}), get[int32](d, out, n))
	},
	"lock": func(d *device, f uintptr) {
		mutex, count := put(d, []int32{0}), put(d, []int32{0})
		require.NoError(d.t, d.launch(f, shape{gx: 4, bx: 64}, mutex, count, new(int32(3))))
		require.Equal(d.t, []int32{4 * 64 * 3}, get[int32](d, count, 1))
	},
	"filter": func(d *device, f uintptr) {
		const n = 200
		in := make1(n, func(i int) float32 { return float32(i * i % 64) })
		out := put(d, make([]float32, n))
		require.NoError(d.t, d.launch(f, shape{gx: 4, bx: 64}, put(d, in), out, new(int32(n))))
		weights := []float32{0.0625, 0.25, 0.375, 0.25, 0.0625}
		require.Equal(d.t, make1(n, func(i int) (sum float32) {
			if i < 2 || i >= n-2 {
				return 0
			}
			for k, w := range weights {
				sum = fma32(w, in[i+k-2], sum)
			}
			return sum
		}), get[float32](d, out, n))
	},
}

func TestKernelsOfEveryCompilerEqualTheirReference(t *testing.T) {
	d := open(t, "h100-sxm")
	for compiler, ptx := range compilers(t) {
		module, log, err := d.compile(ptx)
		require.NoError(t, err, "%s: %s", compiler, log)
		for name, run := range kernelTests {
			t.Run(compiler+"/"+name, func(t *testing.T) {
				d := d.in(t)
				f, err := d.kernel(module, name)
				require.NoError(t, err)
				run(d, f)
			})
		}
	}
}
