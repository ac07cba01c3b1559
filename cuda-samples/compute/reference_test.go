package main

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFMARoundsOnce(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 0))
	number := func() float32 {
		return math.Float32frombits(source.Uint32()&0x83ffffff | (112+source.Uint32()%16)<<23)
	}
	for range 200000 {
		a, b, c := number(), number(), number()
		exact := new(big.Float).SetPrec(400).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		want, _ := exact.Add(exact, big.NewFloat(float64(c))).Float32()
		require.Equal(t, want, fma32(a, b, c), "%v × %v + %v", a, b, c)
	}
}

func TestWrongStepChangesTheResult(t *testing.T) {
	const steps = 20000
	seen := map[uint32]bool{}
	for _, v := range fp32Reference(steps) {
		seen[v] = true
	}
	require.Len(t, seen, lanes)
	wantX, wantY := swing(17*spread, 1, steps)
	for bit := 8; bit < 32; bit++ {
		for at := 100; at < steps; at += 1234 {
			x, y := swing(17*spread, 1, at)
			x = math.Float32frombits(math.Float32bits(x) ^ 1<<bit)
			x, y = swing(x, y, steps-at)
			require.False(t, x == wantX && y == wantY, "bit %d at step %d", bit, at)
		}
	}
}

func TestSumsOfProductsAreExact(t *testing.T) {
	most := 0
	for place := range uint32(4096) {
		n := number(place)
		require.LessOrEqual(t, n, 3)
		require.GreaterOrEqual(t, n, -3)
		most = max(most, n*n)
	}
	require.Less(t, float64(16*most*bf16Steps), math.Exp2(20))
}

func TestPeaksMatchTheDataSheets(t *testing.T) {
	for _, c := range []struct {
		name            string
		of              capability
		multiprocessors float64
		clockHz         float64
		fp32TF, bf16TF  float64
	}{
		{"NVIDIA H100 80GB HBM3", 90, 132, 1.83e9, 61.8, 989.4}, // at its clock of bf16
		{"NVIDIA A100-SXM4-80GB", 80, 108, 1.41e9, 19.5, 311.9},
		{"Tesla T4", 75, 40, 1.59e9, 8.1, 0},
		{"NVIDIA GeForce RTX 4090", 89, 128, 2.52e9, 82.6, 165.2},
		{"NVIDIA L40S", 89, 142, 2.52e9, 91.6, 366.4},
		{"of the future", 200, 100, 1e9, 0, 0},
	} {
		fp32, bf16 := peaks(c.name, c.of, c.multiprocessors, c.clockHz)
		require.InDelta(t, c.fp32TF, fp32/1e12, 0.1, c.name)
		require.InDelta(t, c.bf16TF, bf16/1e12, 0.1, c.name)
	}
}
