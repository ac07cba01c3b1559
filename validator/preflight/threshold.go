package preflight

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/suggest"
)

//go:embed thresholds.yaml
var embeddedYAML []byte

// The figures that have limits.
const (
	figureCopy         = "copy"
	figureTriad        = "triad"
	figureHostToDevice = "hostToDevice"
	figureDeviceToHost = "deviceToHost"
	figureFP32         = "fp32"
	figureBF16         = "bf16"
	figurePeer         = "peer"
)

// figureNames returns the names of all figures.
func figureNames() []string {
	return []string{figureCopy, figureTriad, figureHostToDevice, figureDeviceToHost, figureFP32, figureBF16, figurePeer}
}

// Thresholds holds the expected figures of GPUs, and the share of them that is good enough.
// The table is embedded, thresholds.yaml; a file of the same form can override it.
type Thresholds struct {
	// Limits holds the share of the expected value below which a figure is slow, by figure and by link to the
	// host ("pcie4", "c2c"), compute capability ("9.0") or "any".
	Limits   map[string]map[string]float64 `json:"limits,omitempty"`
	Outlier  *float64                      `json:"outlier,omitempty"`
	Products []Product                     `json:"products,omitempty"`
	Topology []Topology                    `json:"topology,omitempty"`
}

// Product holds the expected figures of one product.
type Product struct {
	Names      []string           `json:"names"`
	FP32       float64            `json:"fp32,omitempty"` // TFLOP/s
	BF16       float64            `json:"bf16,omitempty"` // TFLOP/s, dense
	NVLinks    int                `json:"nvlinks,omitempty"`
	NVLinkRate float64            `json:"nvlinkGBps,omitempty"` // of one link, in one direction
	C2CRate    float64            `json:"c2cGBps,omitempty"`    // to the CPU of its module, in one direction
	Limits     map[string]float64 `json:"limits,omitempty"`
}

const anyCapability = "any"

// EmbeddedThresholds returns the table that comes with the program.
func EmbeddedThresholds() (Thresholds, error) {
	return parseThresholds(embeddedYAML, "thresholds.yaml")
}

// LoadThresholds returns the embedded table, overridden by the file at path.
func LoadThresholds(path string) (Thresholds, error) {
	base, err := EmbeddedThresholds()
	if err != nil || path == "" {
		return base, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Thresholds{}, fmt.Errorf("the thresholds: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, config.MaxBytes+1))
	if err != nil {
		return Thresholds{}, fmt.Errorf("the thresholds: %w", err)
	}
	over, err := parseThresholds(data, path)
	if err != nil {
		return Thresholds{}, err
	}
	return base.overriddenBy(over), nil
}

func parseThresholds(data []byte, source string) (Thresholds, error) {
	var t Thresholds
	if err := config.Strict(data, &t, source); err != nil {
		return Thresholds{}, err
	}
	if err := t.verify(source); err != nil {
		return Thresholds{}, err
	}
	return t, nil
}

// overriddenBy returns the table overridden by another.
func (t Thresholds) overriddenBy(over Thresholds) Thresholds {
	t.Limits = maps.Clone(t.Limits)
	maps.Copy(t.Limits, over.Limits)
	if over.Outlier != nil {
		t.Outlier = over.Outlier
	}
	t.Products = slices.Concat(over.Products, t.Products) // the first that has the name counts
	t.Topology = slices.Concat(over.Topology, t.Topology)
	return t
}

// Product finds a product by NVML's name for it. A simulated GPU is found by the name of
// the product that it imitates.
func (t Thresholds) Product(name string) (Product, bool) {
	name = productName(name)
	for _, p := range t.Products {
		if slices.Contains(p.Names, name) {
			return p, true
		}
	}
	return Product{}, false
}

func productName(name string) string { return strings.TrimPrefix(name, "SIMULATED ") }

// Share returns the least good share of the expected value, 0 if there is no limit. Of the keys, the first that
// has one counts.
func (t Thresholds) Share(figure string, p Product, keys ...string) float64 {
	if own, ok := p.Limits[figure]; ok {
		return own
	}
	limits := t.Limits[figure]
	for _, key := range keys {
		if share, ok := limits[key]; ok {
			return share
		}
	}
	return limits[anyCapability]
}

// rate returns a rate of the datasheet, in FLOP/s; 0 if it has none.
func (p Product) rate(figure string) float64 {
	switch figure {
	case figureFP32:
		return p.FP32 * 1e12
	case figureBF16:
		return p.BF16 * 1e12
	}
	return 0
}

func isHostLink(figure string) bool {
	return figure == figureHostToDevice || figure == figureDeviceToHost
}

// BelowMedian returns the share below the median from which on a figure is an outlier.
func (t Thresholds) BelowMedian() float64 {
	if t.Outlier == nil {
		return 0
	}
	return *t.Outlier
}

var (
	capabilityPattern = regexp.MustCompile(`^[1-9][0-9]?\.[0-9]$`)
	linkPattern       = regexp.MustCompile(`^(pcie[1-6]|c2c)$`)
)

// verify finds errors that the schema does not cover.
func (t Thresholds) verify(source string) error {
	wrong := func(path, format string, args ...any) error {
		return &config.Error{Source: source, Path: path, Err: fmt.Errorf(format, args...)}
	}
	for figure, limits := range t.Limits {
		if err := knownFigure(figure); err != nil {
			return &config.Error{Source: source, Path: "limits." + figure, Err: err}
		}
		for key, share := range limits {
			at := "limits." + figure + "." + key
			link := isHostLink(figure)
			switch {
			case key == anyCapability, capabilityPattern.MatchString(key), link && linkPattern.MatchString(key):
			case link:
				return wrong(at, "want a link, such as pcie5 or c2c, a compute capability such as %q, in quotes, or any", "9.0")
			default:
				return wrong(at, "want a compute capability such as %q, in quotes, or any", "9.0")
			}
			if share < 0 || share > 1 {
				return wrong(at, "want a share between 0 and 1, have %v", share)
			}
		}
	}
	if t.Outlier != nil && (*t.Outlier < 0 || *t.Outlier >= 1) {
		return wrong("outlier", "want a share between 0 and 1, have %v", *t.Outlier)
	}
	for i, p := range t.Products {
		if err := p.verify(); err != nil {
			err.Source, err.Path = source, fmt.Sprintf("products[%d].%s", i, err.Path)
			return err
		}
	}
	for i := range t.Topology {
		if err := t.Topology[i].verify(); err != nil {
			err.Source, err.Path = source, fmt.Sprintf("topology[%d].%s", i, err.Path)
			return err
		}
	}
	return nil
}

func (p Product) verify() *config.Error {
	if len(p.Names) == 0 || slices.Contains(p.Names, "") {
		return &config.Error{Path: "names", Err: errors.New("want the names that nvidia-smi -L shows")}
	}
	for path, value := range map[string]float64{"fp32": p.FP32, "bf16": p.BF16, "nvlinks": float64(p.NVLinks), "nvlinkGBps": p.NVLinkRate, "c2cGBps": p.C2CRate} {
		if value < 0 {
			return &config.Error{Path: path, Err: fmt.Errorf("want no negative number, have %v", value)}
		}
	}
	for figure, share := range p.Limits {
		if err := knownFigure(figure); err != nil {
			return &config.Error{Path: "limits." + figure, Err: err}
		}
		if share < 0 || share > 1 {
			return &config.Error{Path: "limits." + figure, Err: fmt.Errorf("want a share between 0 and 1, have %v", share)}
		}
	}
	return nil
}

func knownFigure(name string) error {
	if slices.Contains(figureNames(), name) {
		return nil
	}
	return errors.New("no such figure" + suggest.Hint(name, figureNames()))
}

// laneRates is the rate of one PCIe lane in one direction, in bytes per second, by generation:
// transfers per second × encoding efficiency / 8 bits (PCI Express Base Specification,
// revision 6.0). Packet headers are not subtracted.
var laneRates = []float64{
	1: 2.5e9 * 8 / 10 / 8,
	2: 5e9 * 8 / 10 / 8,
	3: 8e9 * 128 / 130 / 8,
	4: 16e9 * 128 / 130 / 8,
	5: 32e9 * 128 / 130 / 8,
	6: 64e9 * 242 / 256 / 8,
}

// pcieRate returns the rate of a link in one direction, in bytes per second; 0 if the generation
// or the width is not known.
func pcieRate(generation, width int) float64 {
	if generation <= 0 || generation >= len(laneRates) || width <= 0 {
		return 0
	}
	return laneRates[generation] * float64(width)
}
