package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

func TestImagesAreTakenFromVariables(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	t.Setenv("RELATED_IMAGE_DEVICE_PLUGIN", "localhost:5000/gpu/device-plugin@"+digest)
	o := newOptions("run", "", io.Discard)
	o.addImageFlags()
	require.NoError(t, o.parse([]string{"--toolkit-image=registry.example.com/gpu/toolkit:v1@" + digest}))
	require.Equal(t, map[string]v1.ImageSpec{
		"device-plugin": {Repository: "localhost:5000/gpu", Image: "device-plugin", Version: digest},
		"toolkit":       {Repository: "registry.example.com/gpu", Image: "toolkit", Version: digest},
	}, o.cluster.Pinned)

	for _, wrong := range []string{
		"toolkit", "gpu/toolkit", "gpu/toolkit@v1", "gpu/@" + digest, "gpu/toolkit@sha256:", "gpu/toolkit@" + digest[:70],
		"gpu/toolkit:v1:v2", "gpu/toolkit:v 1", "gpu/toolkit:", " gpu/toolkit:v1", "gpu/toolkit:v1\n",
	} {
		o := newOptions("run", "", io.Discard)
		o.addImageFlags()
		require.ErrorContains(t, o.parse([]string{"--toolkit-image=" + wrong}), "--toolkit-image: ")
	}
}
