// Package image reads and writes images of drivers. The modules for each kernel are one layer
// of such an image, and a label lists these layers. Support for another kernel adds one layer,
// and a node that has the other layers pulls only that one.
package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Labels of an image.
const (
	DriverLabel  = "io.gpuready.driver"         // the driver's version
	ModulesLabel = "io.gpuready.driver.modules" // a JSON list of Modules
)

// Bounds on the content of the labels.
const (
	maxLabel   = 1 << 20
	maxModules = 1000 // layers of modules
)

// Modules describes a layer with the modules for a kernel.
type Modules struct {
	Kernel  string `json:"kernel"` // release, as uname -r prints it
	Kind    string `json:"kind"`   // "open" or "proprietary"
	Version string `json:"version"`
	// Names holds the names of the modules, "nvidia-uvm"; empty: unknown.
	Names []string `json:"modules,omitempty"`
	// Sources is the digest of the sources of the modules; "": unknown.
	Sources string `json:"sources,omitempty"`
	// Signer is the SHA-256 of the certificate whose key has signed them; "": unknown.
	Signer string `json:"signer,omitempty"`
	Layer  string `json:"layer"` // digest of the layer, uncompressed: "sha256:…"
}

// matches reports whether the layer has the wanted modules. A property that is unknown on one
// side matches.
func (m Modules) matches(want Modules) bool {
	if m.Kernel != want.Kernel || m.Kind != want.Kind || m.Version != want.Version {
		return false
	}
	for _, name := range want.Names {
		if len(m.Names) > 0 && !slices.Contains(m.Names, name) {
			return false
		}
	}
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(m.Sources, want.Sources) && same(m.Signer, want.Signer)
}

// ModulesDir returns the folder of a kernel's modules in an image.
func ModulesDir(kernel string) string { return path.Join("driver/lib/modules", kernel) }

// HalvesName is the subfolder of a kernel's modules with the halves that are linked on the
// node, by kind.
const HalvesName = "halves"

// HalvesDir returns the folder of halves of a kernel and kind, relative to the driver's folder
// in an image.
func HalvesDir(kernel, kind string) string { return path.Join("lib/modules", kernel, HalvesName, kind) }

// AddLayer appends a layer of modules to an image and describes it in the labels. The same image
// and layer give the same image. It returns an error if the image already has modules of the
// same kernel and kind.
func AddLayer(base v1.Image, layer v1.Layer, m Modules) (v1.Image, error) {
	config, err := base.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	list, err := parseLabels(config)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(list, func(o Modules) bool { return o.Kernel == m.Kernel && o.Kind == m.Kind }) {
		return nil, fmt.Errorf("the image has %s modules for kernel %s already", m.Kind, m.Kernel)
	}
	if v := config.Config.Labels[DriverLabel]; v != "" && v != "true" && v != m.Version {
		return nil, fmt.Errorf("the image is of driver %s, and the modules are of %s", sanitizeText(v), m.Version)
	}
	id, err := layer.DiffID()
	if err != nil {
		return nil, err
	}
	m.Layer = id.String()
	list = append(list, m)
	slices.SortFunc(list, func(a, b Modules) int { return cmp.Or(cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Kind, b.Kind)) })
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	media, err := base.MediaType()
	if err != nil {
		return nil, err
	}
	addendum := mutate.Addendum{Layer: layer, MediaType: types.DockerLayer, History: v1.History{
		CreatedBy: "gpu-driver push", Comment: fmt.Sprintf("%s modules of driver %s for kernel %s", m.Kind, m.Version, m.Kernel),
	}}
	if media == types.OCIManifestSchema1 {
		addendum.MediaType = types.OCILayer
	}
	added, err := mutate.Append(base, addendum)
	if err != nil {
		return nil, err
	}
	labelled := config.Config.DeepCopy()
	if labelled.Labels == nil {
		labelled.Labels = map[string]string{}
	}
	labelled.Labels[DriverLabel], labelled.Labels[ModulesLabel] = m.Version, string(text)
	return mutate.Config(added, *labelled)
}

// ListModules returns the layers of modules of an image.
func ListModules(i v1.Image) ([]Modules, error) {
	config, err := i.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	return parseLabels(config)
}

func parseLabels(config *v1.ConfigFile) ([]Modules, error) {
	text := config.Config.Labels[ModulesLabel]
	if text == "" {
		return nil, nil
	}
	var list []Modules
	err := errors.New("it is too long")
	if len(text) <= maxLabel {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err == nil && len(list) > maxModules {
		err = fmt.Errorf("it lists %d layers, more than %d", len(list), maxModules)
	}
	if err != nil {
		return nil, fmt.Errorf("the image's label %s: %w", ModulesLabel, err)
	}
	return list, nil
}

// CheckRepository rejects anything but the name of a repository: "registry.example.com/gpu/driver".
func CheckRepository(repository string) error {
	if _, err := name.NewRepository(repository, name.WeakValidation); err != nil {
		return fmt.Errorf("%q is not a repository; write a registry and a path in lower case, without tag and digest: registry.example.com/gpu/driver", sanitizeText(repository))
	}
	return nil
}
