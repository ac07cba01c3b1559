package gpu_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
)

func TestUUIDs(t *testing.T) {
	for _, good := range []string{
		"GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab",
		"MIG-3a5b0c1d-9e8f-5a6b-8c7d-0123456789ab",
		"MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/11/0",
	} {
		id, err := gpu.ParseUUID(good)
		require.NoError(t, err)
		require.EqualValues(t, good, id)
		require.Equal(t, strings.HasPrefix(good, "MIG-"), id.IsMIG())
	}
	for _, bad := range []string{
		"", "GPU-", "GPU", "gpu-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab",
		"GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789a", "GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789abc",
		"GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ag", "GPU-3a5b0c1d09e8f-4a6b-8c7d-0123456789ab",
		"GPU-../../../../../../../../../../etc/pas", "MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab",
		"MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/1", "MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/1/x",
		"MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/1/2/3", "GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/1/2",
	} {
		_, err := gpu.ParseUUID(bad)
		require.ErrorContains(t, err, "UUID", "%q", bad)
	}
}

func TestPCIAddresses(t *testing.T) {
	for text, want := range map[string]gpu.PCIAddress{
		"00000000:3B:00.0": "0000:3b:00.0",  // nvmlPciInfo_t.busId
		"0000:3b:00.0":     "0000:3b:00.0",  // sysfs, nvmlPciInfo_t.busIdLegacy
		"00010000:E1:1F.7": "10000:e1:1f.7", // behind VMD domains have five digits
	} {
		got, err := gpu.ParsePCIAddress(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"", "3b:00.0", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "000000000:3b:00.0", "0000:3b:00.0x", "0000:+b:00.0", "../0:3b:00.0"} {
		_, err := gpu.ParsePCIAddress(bad)
		require.ErrorContains(t, err, "PCI address", "%q", bad)
	}
}

func FuzzParseUUID(f *testing.F) {
	f.Add("GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab")
	f.Add("MIG-GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab/1/0")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := gpu.ParseUUID(text)
		if err == nil && string(id) != text {
			t.Errorf("%q became %q", text, id)
		}
		if err == nil && strings.ContainsAny(text, " .=,\\\x00\n") {
			t.Errorf("%q must not pass for a UUID", text)
		}
	})
}

func FuzzParsePCIAddress(f *testing.F) {
	f.Add("00000000:3B:00.0")
	f.Add("10000:e1:1f.7")
	f.Fuzz(func(t *testing.T, text string) {
		address, err := gpu.ParsePCIAddress(text)
		if err != nil {
			return
		}
		again, err := gpu.ParsePCIAddress(string(address))
		if err != nil || again != address {
			t.Errorf("%q became %q became %q, %v", text, address, again, err)
		}
	})
}

func TestSortedPutsEverythingInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "gpus")
		var s gpu.Snapshot
		for i := range n {
			d := gpu.Device{Index: i, UUID: gpu.UUID(rune('a' + i))}
			for j := range 3 {
				d.MIG = append(d.MIG, gpu.MIGDevice{Index: j})
			}
			d.MIG = rapid.Permutation(d.MIG).Draw(t, "mig")
			for j := range i {
				l := gpu.Link{A: gpu.UUID(rune('a' + i)), B: gpu.UUID(rune('a' + j)), Kind: gpu.LinkSystem}
				if rapid.Bool().Draw(t, "turned") {
					l.A, l.B = l.B, l.A
				}
				s.Links = append(s.Links, l)
			}
			s.Devices = append(s.Devices, d)
		}
		s.Devices = rapid.Permutation(s.Devices).Draw(t, "devices")
		s.Links = rapid.Permutation(s.Links).Draw(t, "links")
		before := s.Clone()
		sorted := s.Sorted()
		if !s.Equal(before) {
			t.Fatalf("Sorted changed what it was given")
		}
		for i, d := range sorted.Devices {
			if d.Index != i || d.MIG[0].Index != 0 || d.MIG[2].Index != 2 {
				t.Fatalf("not in order: %+v", sorted)
			}
		}
		for i, l := range sorted.Links {
			if l.A >= l.B || i > 0 && (sorted.Links[i-1].A > l.A || sorted.Links[i-1].A == l.A && sorted.Links[i-1].B >= l.B) {
				t.Fatalf("links not in order: %+v", sorted.Links)
			}
		}
		if !sorted.Equal(sorted.Sorted()) {
			t.Fatal("sorting twice must change nothing more")
		}
	})
}

func TestCloneSharesNothing(t *testing.T) {
	s := gpu.Snapshot{
		Devices: []gpu.Device{{UUID: "GPU-a", MIG: []gpu.MIGDevice{{UUID: "MIG-a"}}}},
		Links:   []gpu.Link{{A: "GPU-a", B: "GPU-b"}},
	}
	c := s.Clone()
	require.True(t, s.Equal(c))
	c.Devices[0].MIG[0].UUID, c.Links[0].Lanes = "MIG-b", 4
	require.EqualValues(t, "MIG-a", s.Devices[0].MIG[0].UUID)
	require.Zero(t, s.Links[0].Lanes)
	require.False(t, s.Equal(c))
}

func TestEqualNoticesEveryField(t *testing.T) {
	base := gpu.Device{UUID: "GPU-a"}
	for name, change := range map[string]func(*gpu.Device){
		"Index":       func(d *gpu.Device) { d.Index = 1 },
		"UUID":        func(d *gpu.Device) { d.UUID = "GPU-b" },
		"Product":     func(d *gpu.Device) { d.Product = "x" },
		"PCI":         func(d *gpu.Device) { d.PCI = "x" },
		"Minor":       func(d *gpu.Device) { d.Minor = 1 },
		"MemoryBytes": func(d *gpu.Device) { d.MemoryBytes = 1 },
		"NUMANode":    func(d *gpu.Device) { d.NUMANode = 1 },
		"Compute":     func(d *gpu.Device) { d.Compute.Minor = 1 },
		"MIGCapable":  func(d *gpu.Device) { d.MIGCapable = true },
		"MIGEnabled":  func(d *gpu.Device) { d.MIGEnabled = true },
		"MIG":         func(d *gpu.Device) { d.MIG = []gpu.MIGDevice{{}} },
		"Fault":       func(d *gpu.Device) { d.Fault.XID = 1 },
	} {
		d := base
		change(&d)
		require.False(t, base.Equal(d), name)
	}
	require.True(t, base.Equal(base))
}

func TestWords(t *testing.T) {
	require.Equal(t, "9.0", gpu.Compute{Major: 9}.String())
	require.Equal(t, "NVLINK", gpu.LinkNVLink.String())
	require.Equal(t, "99", gpu.LinkKind(99).String())
	require.Equal(t, "XID", gpu.EventXID.String())
	require.Equal(t, "0", gpu.EventKind(0).String())
	require.Equal(t, "none", gpu.Fault{}.String())
	require.Equal(t, "GPULost", gpu.Fault{Reason: gpu.ReasonLost}.String())
	require.Equal(t, "ECC: two bits", gpu.Fault{Reason: gpu.ReasonECC, Message: "two bits"}.String())
	require.Equal(t, "XID 79 (the GPU no longer answers on PCIe)", gpu.XIDText(79))
	require.Equal(t, "XID 1234", gpu.XIDText(1234))
}

func TestFabricAsText(t *testing.T) {
	f := gpu.Fabric{Cluster: [16]byte{1, 2, 3, 15: 0xff}, Clique: 7}
	require.Equal(t, "01020300-0000-0000-0000-0000000000ff.7", f.String())
	require.Equal(t, f, gpu.ParseFabric(f.String()))
	require.Empty(t, gpu.Fabric{Clique: 7}.String(), "the machine's own switches")
	for _, text := range []string{"", "x", "01020300-0000-0000-0000-0000000000ff", "0102.7", f.String() + "0000000000", "01020300-0000-0000-0000-0000000000ff.-1"} {
		require.Equal(t, gpu.Fabric{}, gpu.ParseFabric(text), text)
	}
}

func TestComputeModeAsText(t *testing.T) {
	for _, m := range []gpu.ComputeMode{gpu.ComputeDefault, gpu.ComputeProhibited, gpu.ComputeExclusive} {
		require.Equal(t, m, gpu.ParseComputeMode(m.String()))
	}
	require.Equal(t, gpu.ComputeDefault, gpu.ParseComputeMode("mode 9"))
}
