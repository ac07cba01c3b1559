// Gpusim creates, breaks and repairs a simulated NVIDIA driver: a folder that programs
// take for an installed driver, without a GPU.
package main

import (
	"os"

	"github.com/gpuready/gpuready/simulator/gpusim/command"
)

func main() {
	os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr))
}
