package cli

import (
	"io"
	"testing"

	"github.com/gpuready/gpuready/test/lab/golden"
)

//go:generate go test -tags grpcnotrace -run ^TestThePageListsTheVariables$ . -update

func TestThePageListsTheVariables(t *testing.T) {
	o := newRunOptions("", io.Discard)
	golden.RequireSection(t, "../../docs/driver.md", "<!-- variables of gpu-driver run: made by go generate ./driver/cli -->\n",
		"<!-- end of variables of gpu-driver run -->\n", "\n"+golden.Variables(o.FlagSet, o.Env)+"\n")
}
