// Gpusim creates, breaks and repairs a simulated NVIDIA driver: a folder that programs
// take for an installed driver, without a GPU.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	program.OutliveReaders()
	// Only serve handles signals. They end any other command at once, also one that waits for
	// the lock of a root.
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
