package driver

import (
	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// NVIDIAImages returns the images of a release of NVIDIA's operator by the field of a ClusterPolicy that
// configures them: "dcgmExporter". registry replaces NVIDIA's, unless it is "".
func NVIDIAImages(r nvidia.Release, registry string) map[string]v1.ImageSpec {
	images := map[string]v1.ImageSpec{}
	for field, i := range r.At(registry) {
		images[field] = v1.ImageSpec{Repository: i.Repository, Image: i.Image, Version: i.Version}
	}
	return images
}
