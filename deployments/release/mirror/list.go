package mirror

import (
	"bytes"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Text returns a list for programs and people: one artifact a line, and comments after "#".
func Text(version string, images []Image) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The artifacts of gpuready %s.\n", version)
	for _, i := range images {
		if !i.Foreign {
			fmt.Fprintln(&b, i.Reference())
		}
	}
	b.WriteString("# Other projects' images that the chart installs unless nfd.enabled is false.\n")
	for _, i := range images {
		if i.Foreign {
			fmt.Fprintln(&b, i.Reference())
		}
	}
	b.WriteString("# Not listed: driver images, and NVIDIA's operands, if you turn them on (docs/install.md).\n")
	return b.Bytes()
}

// imageSet is the configuration of oc-mirror, version 2.
type imageSet struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Mirror     struct {
		Operators  []catalog `json:"operators,omitempty"`
		Additional []named   `json:"additionalImages,omitempty"`
	} `json:"mirror"`
}

type catalog struct {
	Catalog   string     `json:"catalog"`
	TargetTag string     `json:"targetTag,omitempty"`
	Packages  []operator `json:"packages"`
}

type operator struct {
	Name     string  `json:"name"`
	Channels []named `json:"channels"`
}

type named struct {
	Name string `json:"name"`
}

// ImageSet returns an ImageSetConfiguration for oc-mirror. The catalog brings the bundle; everything else
// is an additional image, but for the chart, which is no image.
func ImageSet(images []Image) ([]byte, error) {
	s := imageSet{Kind: "ImageSetConfiguration", APIVersion: "mirror.openshift.io/v2alpha1"}
	for _, i := range images {
		switch i.Kind {
		case contents.Catalog:
			s.Mirror.Operators = append(s.Mirror.Operators, catalog{
				Catalog: i.Reference(), TargetTag: i.Tag,
				Packages: []operator{{Name: "gpuready", Channels: []named{{"stable"}}}},
			})
		case contents.Image, contents.Bundle:
			s.Mirror.Additional = append(s.Mirror.Additional, named{i.Reference()})
		case contents.Chart:
		}
	}
	return yaml.Marshal(s)
}
