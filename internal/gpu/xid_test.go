package gpu_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func TestTheSectionOfXIDsIsMadeOfTheTable(t *testing.T) {
	const begin, end = "<!-- XIDs: made by go generate ./internal/gpu -->\n", "<!-- end of XIDs -->\n"
	golden.RequireSection(t, "../../docs/reasons.md", begin, end, xidSection())
}

func TestTheTableIsInOrderAndWhole(t *testing.T) {
	last := uint64(0)
	for _, x := range gpu.XIDs() {
		require.Greater(t, x.First, last, "in order, no number twice, and none is 0")
		require.GreaterOrEqual(t, x.Last, x.First)
		last = x.Last
		require.NotEmpty(t, x.Meaning, x.First)
		require.NotZero(t, x.Source, x.First)
		require.Contains(t, []gpu.XIDClass{gpu.XIDApplication, gpu.XIDNotice, gpu.XIDReset, gpu.XIDFatal}, x.Class, x.First)
		require.Contains(t, []gpu.Action{gpu.ActionIgnore, gpu.ActionUnhealthy, gpu.ActionAsk}, x.Action, x.First)
		require.Contains(t, []gpu.Recovery{gpu.RecoveryQuiet, gpu.RecoveryReset, gpu.RecoveryNever}, x.Recovery, x.First)
		if x.Action != gpu.ActionIgnore && (x.Class == gpu.XIDReset || x.Class == gpu.XIDFatal) {
			require.NotEqual(t, gpu.RecoveryQuiet, x.Recovery, "XID %d: time does not reset a GPU", x.First)
			require.False(t, x.Contained, "XID %d: a reset concerns every instance", x.First)
		}
	}
	require.Equal(t, uint64(8), gpu.XIDs()[0].First)
	gpu.XIDs()[0].First = 1
	require.Equal(t, uint64(8), gpu.XIDs()[0].First, "nobody can change the table")
}

// A broken GPU is allocated if its XID is ignored, so the test names each ignored XID.
func TestIgnoredXIDsAreThoseOfTheReferenceAndNotices(t *testing.T) {
	var reference, notices []uint64
	for n := range uint64(2000) {
		info, known := gpu.XID(n)
		if !known || info.Action != gpu.ActionIgnore {
			continue
		}
		if info.Source&gpu.SourceReference != 0 {
			reference = append(reference, n)
			continue
		}
		if n != 174 { // the driver ended a program's channel
			require.Equal(t, gpu.XIDNotice, info.Class, n)
		}
		notices = append(notices, n)
	}
	require.Equal(t, []uint64{13, 31, 43, 45, 68, 109}, reference)
	require.Equal(t, []uint64{63, 87, 92, 93, 106, 107, 108, 125, 154, 157, 160, 161, 162, 163, 164, 165, 174, 176, 185}, notices)
}

// An advice is a word of NVIDIA's catalogue, and ours is never weaker than it.
func TestDefaultsHeedTheCatalogue(t *testing.T) {
	for _, x := range gpu.XIDs() {
		require.Equal(t, x.Advice != "" || strings.Contains(x.Note, "no action"), x.Source&gpu.SourceCatalog != 0, "XID %d", x.First)
		if x.Source&gpu.SourceCatalog == 0 {
			continue
		}
		switch x.Advice {
		case "IGNORE", "XID_154", "WORKFLOW_XID_45", "RESTART_APP":
		case "RESET_GPU":
			require.Equal(t, gpu.XIDReset, x.Class, x.First)
			require.Equal(t, gpu.RecoveryReset, x.Recovery, x.First)
		default:
			require.Contains(t, []gpu.XIDClass{gpu.XIDReset, gpu.XIDFatal}, x.Class, x.First)
		}
	}
}

func TestEveryNumberIsLookedUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 400).Draw(t, "xid")
		var want *gpu.XIDInfo
		for _, x := range gpu.XIDs() {
			if x.First <= n && n <= x.Last {
				want = &x
			}
		}
		info, known := gpu.XID(n)
		if known != (want != nil) || known && info != *want {
			t.Fatalf("XID %d: %+v, %v", n, info, known)
		}
	})
}

// xidSection renders the table of XIDs. Each number has an address: docs/reasons.md#xid-79.
func xidSection() string {
	b := &strings.Builder{}
	b.WriteString(`
## XIDs

To look up an XID, take the number after the GPU's address in the kernel log, and find its row below:

    dmesg | grep 'NVRM: Xid'

An XID is the number under which the NVIDIA driver reports an error of a GPU. The driver writes it to the kernel log, and reports critical ones as events of NVML. The table shows how the device plugin reacts to each. Its configuration ([configuration.md](configuration.md)) can change that: ` + "`health:`" + `, or the reference's ` + "`DP_DISABLE_HEALTHCHECKS`" + ` and ` + "`DP_ENABLE_HEALTHCHECKS`" + `.

Of an XID that is not listed, the driver is asked (*ask*). An uncorrectable ECC error that the driver reports without an XID is treated as XID 48. On a GPU that several containers share, or that is divided where the driver names no instance, an XID of class *application* is not held against the GPU, unless the configuration says so.

| column | value | meaning |
|---|---|---|
| class | *application* | a program can cause it; the error ends with the program |
| | *notice* | the GPU continues to work |
| | *reset* | the GPU has to be reset |
| | *fatal* | a reset does not help: reboot, change the driver or repair the machine |
| default | *ignore* | the XID is logged and counted; the GPU stays healthy |
| | *unhealthy* | the GPU is not allocated until it has recovered |
| | *ask* | the driver is asked for its recovery action: if it needs none, the XID is logged and counted, else the GPU is unhealthy. Drivers before R570 cannot be asked: the GPU is unhealthy |
| recovery | *quiet* | for a while (5 minutes by default) no further error occurs, and then a probe passes; or the GPU is reset |
| | *reset* | the GPU was out of service, and afterwards has no error |
| | *never* | only a newly loaded driver or a reboot helps |
| MIG | *instance* | if the driver names a GPU instance with the XID, only its MIG devices become unhealthy: its compute instances share memory and engines |
| | *GPU* | all MIG devices of the GPU become unhealthy |

For an ignored XID, the column *recovery* applies if the configuration makes the XID unhealthy.

| XID | meaning | class | default | recovery | MIG | NVIDIA's catalogue | source |
|---|---|---|---|---|---|---|---|
`)
	for _, x := range gpu.XIDs() {
		number := ""
		for n := x.First; n <= x.Last; n++ {
			number += fmt.Sprintf("<a id=\"xid-%d\"></a>", n)
		}
		number += fmt.Sprint(x.First)
		if x.Last > x.First {
			number += fmt.Sprintf("–%d", x.Last)
		}
		scope, advice := "GPU", "–"
		if x.Contained {
			scope = "instance"
		}
		if x.Advice != "" {
			advice = "`" + x.Advice + "`"
		}
		meaning := x.Meaning
		if x.Note != "" {
			meaning += ". *" + strings.ToUpper(x.Note[:1]) + x.Note[1:] + ".*"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", number, meaning, x.Class, x.Action, x.Recovery, scope, advice, sources(x.Source))
	}
	b.WriteString(`
Sources:

- **C** is NVIDIA's catalogue for Ampere and newer, <https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>, as of October 2025. The column *NVIDIA's catalogue* has its immediate action.
- **L** is NVIDIA's list for older GPUs, <https://docs.nvidia.com/deploy/xid-errors/>.
- **M** is NVIDIA's description of memory errors on GPUs since Ampere, <https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/>.
- **R** is the reference device plugin, ` + "`internal/rm/health.go`" + ` of <https://github.com/NVIDIA/k8s-device-plugin>. It ignores these six XIDs. After any other one it does not allocate the GPU until the plugin is restarted.
- **G** is GPUd, ` + "`components/accelerator/nvidia/xid`" + ` of <https://github.com/leptonai/gpud>, or its catalogue.
- **D** is the list of errors in NVIDIA's open kernel modules, ` + "`src/common/sdk/nvidia/inc/nverror.h`" + ` of <https://github.com/NVIDIA/open-gpu-kernel-modules>, up to 595.45.04.
- ` + "`nvml.h`" + ` documents at ` + "`nvmlEventData_t`" + ` that NVML names the MIG instance of an XID.

`)
	return b.String()
}

// What a person should do is named for each fault that does not end by itself.
func TestNextAction(t *testing.T) {
	const id = "GPU-00000000-0000-4000-8000-000000000001"
	for _, x := range gpu.XIDs() {
		action := gpu.Fault{Reason: gpu.ReasonXID, XID: x.First}.NextAction(id)
		require.NotEmpty(t, action, x.First)
		if x.Class == gpu.XIDReset {
			require.Contains(t, action, "nvidia-smi --gpu-reset -i "+id, x.First)
		}
	}
	require.Contains(t, gpu.Fault{Reason: gpu.ReasonXID, XID: 9999}.NextAction(id), "reset the GPU", "an unknown XID")
	require.NotContains(t, gpu.Fault{Reason: gpu.ReasonECC}.NextAction("MIG-00000000-0000-4000-8000-000000000001"), "-i MIG", "a MIG device cannot be reset")
	require.Contains(t, gpu.Fault{Reason: gpu.ReasonLost}.NextAction(id), "reboot")
	require.Empty(t, gpu.Fault{Reason: gpu.ReasonUnwatched}.NextAction(id), "the message tells")
}

func sources(s gpu.XIDSource) string {
	var words []string
	for i, letter := range []string{"C", "L", "R", "M", "G", "D"} {
		if s&(1<<i) != 0 {
			words = append(words, letter)
		}
	}
	return strings.Join(words, ", ")
}
