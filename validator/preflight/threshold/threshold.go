// Package threshold holds the expected figures of GPUs, and the share of them that is good
// enough. The table is embedded, thresholds.yaml; a file of the same form can override it.
package threshold

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
)

//go:embed thresholds.yaml
var embedded []byte

// The figures that have limits.
const (
	Copy         = "copy"
	Triad        = "triad"
	HostToDevice = "hostToDevice"
	DeviceToHost = "deviceToHost"
	FP32         = "fp32"
	BF16         = "bf16"
	Peer         = "peer"
)

// Figures returns the names of all figures.
func Figures() []string { return []string{Copy, Triad, HostToDevice, DeviceToHost, FP32, BF16, Peer} }

// Table holds the expected figures of all products.
type Table struct {
	// Limits holds the share of the expected value below which a figure is slow, by
	// figure and compute capability ("9.0", or "any").
	Limits   map[string]map[string]float64 `json:"limits,omitempty"`
	Outlier  *float64                      `json:"outlier,omitempty"`
	Products []Product                     `json:"products,omitempty"`
}

// Product holds the expected figures of one product.
type Product struct {
	Names      []string           `json:"names"`
	FP32       float64            `json:"fp32,omitempty"` // TFLOP/s
	BF16       float64            `json:"bf16,omitempty"` // TFLOP/s, dense
	NVLinks    int                `json:"nvlinks,omitempty"`
	NVLinkRate float64            `json:"nvlinkGBps,omitempty"` // of one link, in one direction
	Limits     map[string]float64 `json:"limits,omitempty"`
}

const anyCapability = "any"

// Embedded returns the table that comes with the program.
func Embedded() (Table, error) { return parse(embedded, "thresholds.yaml") }

// Load returns the embedded table, overridden by the file at path.
func Load(path string) (Table, error) {
	base, err := Embedded()
	if err != nil || path == "" {
		return base, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Table{}, fmt.Errorf("the thresholds: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, config.MaxBytes+1))
	if err != nil {
		return Table{}, fmt.Errorf("the thresholds: %w", err)
	}
	over, err := parse(data, path)
	if err != nil {
		return Table{}, err
	}
	return base.overriddenBy(over), nil
}

func parse(data []byte, source string) (Table, error) {
	var t Table
	if err := config.Strict(data, &t, source); err != nil {
		return Table{}, err
	}
	if err := t.verify(source); err != nil {
		return Table{}, err
	}
	return t, nil
}

// overriddenBy returns the table overridden by another.
func (t Table) overriddenBy(over Table) Table {
	t.Limits = maps.Clone(t.Limits)
	maps.Copy(t.Limits, over.Limits)
	if over.Outlier != nil {
		t.Outlier = over.Outlier
	}
	t.Products = slices.Concat(over.Products, t.Products) // the first that has the name counts
	return t
}

// Product finds a product by NVML's name for it. A simulated GPU is found by the name of
// the product that it imitates.
func (t Table) Product(name string) (Product, bool) {
	name = strings.TrimPrefix(name, "SIMULATED ")
	for _, p := range t.Products {
		if slices.Contains(p.Names, name) {
			return p, true
		}
	}
	return Product{}, false
}

// Share returns the least good share of the expected value, 0 if there is no limit.
func (t Table) Share(figure string, p Product, capability string) float64 {
	if own, has := p.Limits[figure]; has {
		return own
	}
	limits := t.Limits[figure]
	if share, has := limits[capability]; has {
		return share
	}
	return limits[anyCapability]
}

// BelowMedian returns the share below the median from which on a figure is an outlier.
func (t Table) BelowMedian() float64 {
	if t.Outlier == nil {
		return 0
	}
	return *t.Outlier
}

var capability = regexp.MustCompile(`^[1-9][0-9]?\.[0-9]$`)

// verify finds errors that the schema does not cover.
func (t Table) verify(source string) error {
	wrong := func(path, format string, args ...any) error {
		return &config.Error{Source: source, Path: path, Err: fmt.Errorf(format, args...)}
	}
	for figure, limits := range t.Limits {
		if err := knownFigure(figure); err != nil {
			return &config.Error{Source: source, Path: "limits." + figure, Err: err}
		}
		for key, share := range limits {
			at := "limits." + figure + "." + key
			if key != anyCapability && !capability.MatchString(key) {
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
	return nil
}

func (p Product) verify() *config.Error {
	if len(p.Names) == 0 || slices.Contains(p.Names, "") {
		return &config.Error{Path: "names", Err: errors.New("want the names that nvidia-smi -L shows")}
	}
	for path, value := range map[string]float64{"fp32": p.FP32, "bf16": p.BF16, "nvlinks": float64(p.NVLinks), "nvlinkGBps": p.NVLinkRate} {
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
	if slices.Contains(Figures(), name) {
		return nil
	}
	return errors.New("no such figure" + config.Suggest(name, Figures()))
}
