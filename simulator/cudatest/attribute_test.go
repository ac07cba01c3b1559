package cudatest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// The attributes from which programs compute a GPU's peak rates, and its location. The bandwidth
// is twice the memory clock times the width of the bus.
func TestAttributesAreThoseOfTheGPU(t *testing.T) {
	type want struct {
		pci                                   string
		sms, clock, memory, bus, l2, toDouble int32 // kHz, bits, bytes
		bandwidth                             float64
	}
	for profile, want := range map[string]want{
		"a10g":         {"0000:00:1e.0", 80, 1710_000, 6251_000, 384, 6 << 20, 64, 600e9},
		"b300":         {"0000:1a:00.0", 148, 2032_000, 3996_000, 7680, 126 << 20, 2, 7672e9},
		"gb10":         {"000f:01:00.0", 48, 2418_000, 8533_000, 256, 24 << 20, 64, 546e9},
		"gb200":        {"0008:01:00.0", 152, 2062_000, 3996_000, 7936, 129536 << 10, 2, 7928e9},
		"gh200":        {"0000:dd:00.0", 132, 1980_000, 2619_000, 6144, 60 << 20, 2, 4023e9},
		"rtx-pro-6000": {"0000:38:00.0", 188, 2430_000, 12481_000, 512, 128 << 20, 64, 1597e9},
		"v100-sxm2":    {"0000:1a:00.0", 80, 1530_000, 877_000, 4096, 6 << 20, 2, 898e9},
		"vgpu":         {"0000:00:10.0", 84, 210_000, 405_000, 384, 6 << 20, 64, 38.9e9},
		"a100-80gb":    {"0000:07:00.0", 108, 1410_000, 1593_000, 5120, 40 << 20, 2, 2039e9},
		"b200":         {"0000:1b:00.0", 148, 1965_000, 3996_000, 7680, 129536 << 10, 2, 7672e9},
		"dgx-2":        {"0000:34:00.0", 80, 1597_000, 958_000, 4096, 6 << 20, 2, 981e9},
		"h100-sxm":     {"0000:1b:00.0", 132, 1980_000, 2619_000, 5120, 50 << 20, 2, 3352e9},
		"h200-sxm":     {"0000:1b:00.0", 132, 1980_000, 3201_000, 6016, 60 << 20, 2, 4814e9},
		"l40s":         {"0000:01:00.0", 142, 2520_000, 9001_000, 384, 96 << 20, 64, 864e9},
		"t4":           {"0000:3b:00.0", 40, 1590_000, 5001_000, 256, 4 << 20, 32, 320e9},
	} {
		t.Run(profile, func(t *testing.T) {
			d := open(t, profile)
			is := func(which int32) (value int32) {
				require.Zero(t, d.cuDeviceGetAttribute(&value, which, 0))
				return value
			}
			pci := make([]byte, 16)
			require.Zero(t, bind[func(*byte, int32, int32) int32](d.lib, "cuDeviceGetPCIBusId")(&pci[0], 16, 0))
			require.Equal(t, want.pci, strings.ToLower(strings.TrimRight(string(pci), "\x00")))
			require.Equal(t, want.pci, fmt.Sprintf("%04x:%02x:%02x.0", is(50), is(33), is(34)))
			bandwidth := 2 * 1000 * float64(is(36)) * float64(is(37)) / 8
			require.InEpsilon(t, want.bandwidth, bandwidth, 0.001)
			got := want
			got.sms, got.clock, got.memory, got.bus, got.l2, got.toDouble = is(16), is(13), is(36), is(37), is(38), is(87)
			require.Equal(t, want, got)

			var free, total, device uint64
			require.Zero(t, d.cuMemGetInfo(&free, &total))
			require.Zero(t, d.cuDeviceTotalMem(&device, 0))
			require.Equal(t, device, total)
			p, before := put(d, make([]byte, 1<<20)), free
			require.Zero(t, d.cuMemGetInfo(&free, &total))
			require.Equal(t, before-1<<20, free)
			require.Zero(t, d.cuMemFree(*p))
		})
	}
}

// Peers are the GPUs that reach each other according to NVML.
func TestPeersFollowTheTopology(t *testing.T) {
	for name, c := range map[string]struct {
		profile string
		args    []string
		prepare []string // a fault
		want    string   // a line for each GPU: to which others it has access; n: native atomics, too
	}{
		"switches":        {"h100-sxm", []string{"--gpus", "3"}, nil, "-nn n-n nn-"},
		"PCIe":            {"l40s", nil, nil, "-p.. p-.. ..-p ..p-"},
		"different GPUs":  {"mixed", nil, nil, "-... .-.. ..-. ...-"},
		"direct links":    {"a100-80gb", []string{"--gpus", "2"}, nil, "-n n-"},
		"links that fail": {"h100-sxm", []string{"--gpus", "6"}, strings.Fields("--gpu 0 --links-down 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"), "-pp... p-nnnn pn-nnn .nn-nn .nnn-n .nnnn-"},
	} {
		t.Run(name, func(t *testing.T) {
			root := built.DriverRoot(t, c.profile, c.args...)
			if c.prepare != nil {
				built.Gpusim(t, append([]string{"degrade", "--root", root}, c.prepare...)...)
			}
			l := load(t, root)
			require.Zero(t, l.cuInit(0))
			can := bind[func(*int32, int32, int32) int32](l, "cuDeviceCanAccessPeer")
			attribute := bind[func(*int32, int32, int32, int32) int32](l, "cuDeviceGetP2PAttribute")
			var n int32
			require.Zero(t, l.cuDeviceGetCount(&n))
			var got []string
			for i := range n {
				line := ""
				for j := range n {
					var access, same, atomics int32
					require.Zero(t, can(&access, i, j))
					if i == j {
						require.Zero(t, access)
						line += "-"
						continue
					}
					require.Zero(t, attribute(&same, 2, i, j))
					require.Zero(t, attribute(&atomics, 3, i, j))
					require.Equal(t, access, same)
					line += []string{".", "p", "n"}[access+atomics]
				}
				got = append(got, line)
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

// A copy between GPUs that do not reach each other goes by way of the host.
func TestPeersThatDoNotReachEachOtherCopyAllTheSame(t *testing.T) {
	l := open(t, "l40s").lib
	from := l.newContext(t, 2)
	p := put(from, []uint32{1, 2, 3})
	d := l.newContext(t, 0)
	out := put(d, make([]uint32, 3))
	require.Equal(t, peerUnsupported, check(d.cuCtxEnablePeerAccess(from.context, 0)))
	peer := bind[func(uint64, uintptr, uint64, uintptr, uint64) int32](l, "cuMemcpyPeer")
	require.Zero(t, peer(*out, d.context, *p, from.context, 12))
	require.Equal(t, []uint32{1, 2, 3}, get[uint32](d, out, 3))
}

func TestAKernelsMemoryIsWhatItDeclares(t *testing.T) {
	d := open(t, "h100-sxm", "--gpus", "1")
	attribute := bind[func(*int32, int32, uintptr) int32](d.lib, "cuFuncGetAttribute")
	module, log, err := d.compile(header + `
.shared .align 4 .b8 used[400];
.shared .align 4 .b8 unused[100];
.const .align 8 .b8 constants[80];
.visible .entry plain() { .shared .b32 own; ret; }
.visible .entry k() { .reg .b32 %r; .shared .b32 own; mov.u32 %r, used; ret; }
`)
	require.NoError(t, err, log)
	for name, shared := range map[string]int32{"plain": 4, "k": 404} {
		f, err := d.kernel(module, name)
		require.NoError(t, err)
		var got int32
		require.Zero(t, attribute(&got, 1, f))
		require.Equal(t, shared, got, name)
		require.Zero(t, attribute(&got, 2, f))
		require.EqualValues(t, 80, got)
	}
}
