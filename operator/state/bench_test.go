package state

import (
	"testing"

	"github.com/gpuready/gpuready/operator/driver"
)

func BenchmarkRender(b *testing.B) {
	in := Input{Policy: policy(b, everything), Cluster: cluster, Drivers: []driver.Choice{ubuntu(), precompiled(), toolkit("412.86.202303241612-0")}, Injections: injections}
	for b.Loop() {
		if _, _, err := Render(in); err != nil {
			b.Fatal(err)
		}
	}
}
