package prefer_test

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// BenchmarkPrefer measures one request on the slowest and fastest machines. make bench
// prints its distribution.
func BenchmarkPrefer(b *testing.B) {
	for _, n := range []int{8, 16} {
		for _, m := range machines(n) {
			switch m.name {
			case "dgx-2", "l40s", "bridged pairs", "quads of pairs", "cube mesh":
			default:
				continue
			}
			c, all := chooser(m.node), ids(m.node)
			for _, size := range []int{1, 2, 3, 4, 7, 8} {
				if size < n {
					b.Run(fmt.Sprintf("%s/%d of %d", m.name, size, n), func(b *testing.B) { benchmarkPrefer(b, c, all, size) })
				}
			}
		}
	}
	s := gputest.Node("dgx-2", 16)
	for _, policy := range []prefer.Policy{prefer.Aligned, prefer.Distributed, prefer.Packed} {
		c := prefer.New(prefer.NewTopology(s), parts(s, 50), prefer.Options{Policy: policy})
		all := names(parts(s, 50))
		b.Run(fmt.Sprintf("policy %d/8 of 16 x 50 replicas", policy), func(b *testing.B) { benchmarkPrefer(b, c, all, 8) })
	}
	many := wired(32, bridged(4, 6))
	b.Run("bridged quads/8 of 32", func(b *testing.B) { benchmarkPrefer(b, chooser(many), ids(many), 8) })
}

func benchmarkPrefer(b *testing.B, c *prefer.Chooser, available []string, size int) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Prefer(available, nil, size); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReference measures the same requests with go-gpuallocator, with which NVIDIA's device plugin chooses.
// That plugin reads the links in each request besides, which is left out. Use -benchtime=1x: a request for 3 of 16
// takes minutes.
func BenchmarkReference(b *testing.B) {
	for _, size := range []int{2, 4, 8} {
		list := allocatable(gputest.Node("dgx-2", 16))
		b.Run(fmt.Sprintf("dgx-2/%d of 16", size), func(b *testing.B) {
			for b.Loop() {
				if chosen := gpuallocator.NewBestEffortPolicy().Allocate(list, nil, size); len(chosen) != size {
					b.Fatalf("it chose %d GPUs of %d", len(chosen), size)
				}
			}
		})
	}
}

// BenchmarkNew measures the cost of a change of a node's GPUs or health.
func BenchmarkNew(b *testing.B) {
	for _, replicas := range []int{1, 50} {
		s := gputest.Node("dgx-2", 16)
		devices := parts(s, replicas)
		b.Run(fmt.Sprintf("16 GPUs, %d replicas", replicas), func(b *testing.B) {
			for b.Loop() {
				prefer.New(prefer.NewTopology(s), devices, prefer.Options{})
			}
		})
	}
}
