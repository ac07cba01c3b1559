package preflight

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheEmbeddedTable(t *testing.T) {
	table, err := EmbeddedThresholds()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, p := range table.Products {
		require.True(t, p.FP32 > 0 || p.C2CRate > 0, p.Names)
		for _, name := range p.Names {
			require.False(t, seen[name], "%s is there twice", name)
			seen[name] = true
		}
	}
	h100, ok := table.Product("SIMULATED NVIDIA H100 80GB HBM3")
	require.True(t, ok)
	require.Equal(t, 989.4, h100.BF16)
	_, ok = table.Product("NVIDIA H100")
	require.False(t, ok)
	l4, _ := table.Product("NVIDIA L4")
	for _, c := range []struct {
		figure  string
		product Product
		key     string
		want    float64
	}{
		{figureCopy, h100, "9.0", 0.7},
		{figureCopy, l4, "8.9", 0.75},
		{figureHostToDevice, h100, "pcie5", 0.72},
		{figureHostToDevice, h100, "pcie6", 0},
		{figureDeviceToHost, h100, "c2c", 0.5},
		{figureCopy, h100, "6.0", 0.6},
		{figureFP32, h100, "9.0", 0.85},
		{figureBF16, h100, "9.0", 0.55},
		{figureBF16, h100, "8.0", 0.75},
		{figureBF16, h100, "10.0", 0},
		{figureFP32, l4, "8.9", 0},
		{figureTriad, h100, "9.0", 0},
	} {
		require.Equal(t, c.want, table.Share(c.figure, c.product, c.key), "%+v", c)
	}
	require.Equal(t, 0.1, table.BelowMedian())
}

func TestAFileOverridesTheTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.yaml")
	require.NoError(t, os.WriteFile(path, []byte("outlier: 0.05\nlimits: {fp32: {any: 0.5}}\nproducts:\n- {names: [NVIDIA L4], fp32: 30, limits: {fp32: 0.6}}\n"), 0o644))
	table, err := LoadThresholds(path)
	require.NoError(t, err)
	l4, _ := table.Product("NVIDIA L4")
	require.Equal(t, 0.6, table.Share(figureFP32, l4, "8.9"))
	h200, ok := table.Product("NVIDIA H200")
	require.True(t, ok)
	require.Equal(t, 0.5, table.Share(figureFP32, h200, "9.0"))
	require.Equal(t, 0.7, table.Share(figureCopy, h200, "9.0"))
	require.Equal(t, 0.05, table.BelowMedian())
	_, err = LoadThresholds(path + "x")
	require.ErrorContains(t, err, "the thresholds: open")
}

func TestErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		"limit: {}":                                       `f: limit: unknown key, did you mean "limits"?`,
		"limits: {fp23: {any: 1}}":                        `f: limits.fp23: no such figure, did you mean "fp32"?`,
		"limits: {fp32: {hopper: 1}}":                     `f: limits.fp32.hopper: want a compute capability such as "9.0", in quotes, or any`,
		"limits: {fp32: {any: 85}}":                       `f: limits.fp32.any: want a share between 0 and 1, have 85`,
		"outlier: 10":                                     `f: outlier: want a share between 0 and 1, have 10`,
		"products: [{fp32: 1}]":                           `f: products[0].names: want the names that nvidia-smi -L shows`,
		"products: [{names: [X], fp32: -1}]":              `f: products[0].fp32: want no negative number, have -1`,
		"products: [{names: [X], limits: {copy: 2}}]":     `f: products[0].limits.copy: want a share between 0 and 1, have 2`,
		"products: [{names: [X], limits: {cop: 0.2}}]":    `f: products[0].limits.cop: no such figure, did you mean "copy"?`,
		"limits: {hostToDevice: {pcie7: 1}}":              `f: limits.hostToDevice.pcie7: want a link, such as pcie5 or c2c, a compute capability`,
		"limits: {fp32: {pcie5: 1}}":                      `f: limits.fp32.pcie5: want a compute capability`,
		"products: [{names: [X], c2cGBps: -1}]":           `f: products[0].c2cGBps: want no negative number, have -1`,
		"topology: [{names: [X]}]":                        `f: topology[0].nvlinks: want nvlinks, pcieGeneration or pcieWidth`,
		"topology: [{pci: [here], nvlinks: 0}]":           `f: topology[0].pci[0]: `,
		"topology: [{nvlinks: -1}]":                       `f: topology[0].nvlinks: want no negative number, have -1`,
		"topology: [{pcieGeneration: 9}]":                 `f: topology[0].pcieGeneration: want 1 to 6, have 9`,
		"topology: [{pcieWidth: 64}]":                     `f: topology[0].pcieWidth: want 1 to 32, have 64`,
		"products: [{names: [X], nvlinks: twelve}]":       "f: products",
		"products: [{names: [X], nvlinks: 1, nvlink: 2}]": "f: products[0].nvlink: unknown key",
	} {
		_, err := parseThresholds([]byte(text), "f")
		require.ErrorContains(t, err, want, text)
	}
}

func TestPCIeRates(t *testing.T) {
	require.InDelta(t, 4e9, pcieRate(1, 16), 1)
	require.InDelta(t, 15.75e9, pcieRate(3, 16), 0.01e9)
	require.InDelta(t, 31.51e9, pcieRate(4, 16), 0.01e9)
	require.InDelta(t, 63.02e9, pcieRate(5, 16), 0.01e9)
	require.InDelta(t, 121e9, pcieRate(6, 16), 0.01e9)
	require.Zero(t, pcieRate(0, 16))
	require.Zero(t, pcieRate(7, 16))
	require.Zero(t, pcieRate(5, 0))
}

func FuzzParseThresholds(f *testing.F) {
	f.Add(embeddedYAML)
	f.Add([]byte("products: [{names: [X], limits: {copy: 2}}]"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if t, err := parseThresholds(data, "f"); err == nil {
			t.Share(figureFP32, Product{}, "9.0")
		}
	})
}
