package toolkit

import (
	"os"
	"testing"

	"github.com/gpuready/gpuready/test/lab/node"
)

// variable names the folder that `make build` filled; without it nothing runs here.
const variable = "GPUREADY_E2E"

func TestMain(m *testing.M) {
	bin := os.Getenv(variable)
	if bin != "" {
		if err := os.Setenv("GPUREADY_BIN", bin); err != nil { // for package built
			panic(err)
		}
	}
	os.Exit(node.Main(m, bin != ""))
}
