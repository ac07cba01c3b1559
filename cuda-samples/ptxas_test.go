package samples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// NVIDIA's own assembler (Debian's nvidia-cuda-toolkit, named in PTXAS) must accept
// every kernel for each of its GPUs.
func TestPTXASAcceptsEveryKernel(t *testing.T) {
	ptxas := os.Getenv("PTXAS")
	if ptxas == "" {
		t.Skip("PTXAS does not name NVIDIA's ptxas")
	}
	kernels, err := filepath.Glob("*/*.ptx")
	require.NoError(t, err)
	require.NotEmpty(t, kernels)
	for _, kernel := range kernels {
		for _, gpu := range []string{"sm_50", "sm_52", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"} {
			if strings.HasSuffix(kernel, "_sm80.ptx") && gpu < "sm_80" {
				continue
			}
			t.Run(kernel+" for "+gpu, func(t *testing.T) {
				t.Parallel()
				out, err := exec.Command(ptxas, "-arch="+gpu, kernel, "-o", filepath.Join(t.TempDir(), "cubin")).CombinedOutput()
				require.NoError(t, err, "%s", out)
			})
		}
	}
}
